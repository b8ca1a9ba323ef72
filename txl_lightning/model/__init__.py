"""The network. Imports torch and nothing of ours."""

from .cache import AnyMemory, KeyValueCache
from .config import SameLength, SeenInEvaluation, TransformerXLConfig, require
from .errors import NonFiniteError
from .memory import Memory
from .mode import evaluating
from .precision import widest
from .transformer_xl import TransformerXL

__all__ = [
    "AnyMemory",
    "KeyValueCache",
    "Memory",
    "NonFiniteError",
    "SameLength",
    "SeenInEvaluation",
    "TransformerXL",
    "TransformerXLConfig",
    "evaluating",
    "require",
    "widest",
]
