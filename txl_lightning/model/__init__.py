"""The network. Imports only torch and our errors."""

from .config import EvalLengths, EvalSameLength, TransformerXLConfig
from .inference import AnyMemory, CachedReader, KeyValueCache, eval_mode
from .memory import Memory
from .precision import Weights, accumulator_dtype, has_bfloat16_units, pack_weights
from .transformer_xl import TransformerXL

__all__ = [
    "AnyMemory",
    "CachedReader",
    "EvalLengths",
    "EvalSameLength",
    "KeyValueCache",
    "Memory",
    "TransformerXL",
    "TransformerXLConfig",
    "Weights",
    "accumulator_dtype",
    "eval_mode",
    "has_bfloat16_units",
    "pack_weights",
]
