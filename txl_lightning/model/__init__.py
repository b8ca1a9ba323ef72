"""The network. Imports only torch and our lowest files."""

from .config import EvalLengths, EvalSameLength, TransformerXLConfig
from .contract import (
    AnyMemory,
    Network,
    NetworkConfig,
    describe_config,
    find_device,
    is_transformer_xl,
    join_rows,
    make_config,
    require_transformer_xl,
)
from .inference import CachedReader, KeyValueCache, Reader, eval_mode, make_reader
from .memory import Memory
from .precision import Weights, accumulator_dtype, has_bfloat16_units, narrow_weights
from .transformer_xl import TransformerXL

__all__ = [
    "AnyMemory", "CachedReader", "EvalLengths", "EvalSameLength", "KeyValueCache", "Memory",
    "Network", "NetworkConfig", "Reader", "TransformerXL", "TransformerXLConfig", "Weights",
    "accumulator_dtype", "describe_config", "eval_mode", "find_device", "has_bfloat16_units",
    "is_transformer_xl", "join_rows", "make_config", "make_reader", "narrow_weights",
    "require_transformer_xl",
]  # fmt: skip
