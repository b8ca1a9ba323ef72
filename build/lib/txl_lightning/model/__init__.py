"""The network. Imports only torch, numpy and our lowest files."""

from .config import EvalLengths, EvalSameLength, TransformerXLConfig
from .contract import Network, NetworkConfig, find_device
from .inference import CachedReader, KeyValueCache, Reader, eval_mode, make_reader
from .memory import Memory
from .precision import Weights, accumulator_dtype, has_bfloat16_units, pack_weights
from .transformer_xl import TransformerXL

__all__ = [
    "CachedReader", "EvalLengths", "EvalSameLength", "KeyValueCache", "Memory",
    "Network", "NetworkConfig", "Reader", "TransformerXL", "TransformerXLConfig", "Weights",
    "accumulator_dtype", "eval_mode", "find_device", "has_bfloat16_units", "make_reader",
    "pack_weights",
]  # fmt: skip
