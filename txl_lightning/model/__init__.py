"""The network. Imports torch and nothing of ours."""

from .cache import AnyMemory, KeyValueCache
from .config import EvalSameLength, SameLength, TransformerXLConfig
from .memory import Memory
from .mode import eval_mode
from .precision import accumulator_dtype
from .transformer_xl import TransformerXL

__all__ = [
    "AnyMemory",
    "EvalSameLength",
    "KeyValueCache",
    "Memory",
    "SameLength",
    "TransformerXL",
    "TransformerXLConfig",
    "accumulator_dtype",
    "eval_mode",
]
