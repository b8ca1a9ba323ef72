"""Transformer-XL language models in PyTorch Lightning: memory from segment to segment."""

from .data import CorpusDataModule
from .evaluation import stream_nats
from .generation import generate
from .model import Memory, TransformerXL, TransformerXLConfig
from .training import LanguageModel, OptimConfig

__all__ = [
    "CorpusDataModule",
    "LanguageModel",
    "Memory",
    "OptimConfig",
    "TransformerXL",
    "TransformerXLConfig",
    "generate",
    "stream_nats",
]
