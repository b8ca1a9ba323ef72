"""The network. Imports torch and nothing of ours."""

from .cache import AnyMemory, KeyValueCache
from .config import SameLength, TransformerXLConfig, require
from .memory import Memory
from .mode import evaluating
from .transformer_xl import TransformerXL

__all__ = [
    "AnyMemory",
    "KeyValueCache",
    "Memory",
    "SameLength",
    "TransformerXL",
    "TransformerXLConfig",
    "evaluating",
    "require",
]
