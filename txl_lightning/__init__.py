"""Transformer-XL language models in PyTorch Lightning: memory from segment to segment."""

from importlib import import_module
from typing import Any

HOMES = {
    "CorpusDataModule": "data.datamodule",
    "KeyValueCache": "model",
    "LanguageModel": "training",
    "Memory": "model",
    "OptimConfig": "training",
    "TransformerXL": "model",
    "TransformerXLConfig": "model",
    "beam_search": "generation",
    "generate": "generation",
    "load": "checkpoints",
    "stream_nats": "evaluation.scoring",
}
"""Where each name lives. It is imported when it is asked for: preparing a text needs no torch."""

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{HOMES[name]}", __name__), name)
