"""Transformer-XL language models in PyTorch Lightning: memory from segment to segment."""

import os
from importlib import import_module
from typing import Any

__version__ = "1.0.0"

if os.name == "nt":
    raise ImportError(
        "txl_lightning runs on Linux and macOS; on Windows, inside WSL (wsl --install)"
    )

HOMES = {
    "Adaptation": "model.adaptation",
    "CorpusDataModule": "data.datamodule",
    "DecodingState": "generation",
    "KeyValueCache": "model",
    "LanguageModel": "training",
    "Memory": "model",
    "OptimConfig": "training",
    "Sampling": "generation",
    "ScoredToken": "generation",
    "Segment": "data.stream",
    "Session": "generation",
    "Sessions": "generation",
    "Stream": "data.stream",
    "TimeBudget": "training.callbacks.time_budget",
    "TransformerXL": "model",
    "TransformerXLConfig": "model",
    "Vocabulary": "data.vocab",
    "decode_steps": "generation",
    "encode_prompt": "generation",
    "generate": "generation",
    "join_words": "generation",
    "load": "checkpoints",
    "load_vocabulary": "data.vocab",
    "score": "generation",
    "score_candidates": "generation",
    "start_decoding": "generation",
    "start_scoring": "generation",
    "stream_nats": "evaluation.scoring",
}
"""Where each name lives. It is imported when it is asked for: preparing a text needs no torch."""

__all__ = ["__version__", *HOMES]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{HOMES[name]}", __name__), name)
