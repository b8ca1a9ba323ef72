"""The network. Imports only torch, numpy and our lowest files."""

from .config import EvalLengths, EvalSameLength, TransformerXLConfig
from .contract import Network, NetworkConfig
from .inference import (
    CachedReader,
    KeyValueCache,
    Reader,
    Weights,
    accumulator_dtype,
    eval_mode,
    find_device,
    make_reader,
    pack_weights,
)
from .memory import Memory
from .precision import has_bfloat16_units
from .transformer_xl import TransformerXL

__all__ = [
    "CachedReader", "EvalLengths", "EvalSameLength", "KeyValueCache", "Memory",
    "Network", "NetworkConfig", "Reader", "TransformerXL", "TransformerXLConfig", "Weights",
    "accumulator_dtype", "eval_mode", "find_device", "has_bfloat16_units", "make_reader",
    "pack_weights",
]  # fmt: skip
