"""The network. Imports only torch, numpy and our lowest files."""

from .cache import KeyValueCache, holds_keys
from .config import EvalLengths, EvalSameLength, HoldsNetwork, TransformerXLConfig, find_network
from .contract import Network, NetworkConfig, find_device
from .memory import Memory
from .packing import Weights, pack_weights
from .parts import accumulator_dtype, eval_mode, has_bfloat16_units
from .transformer_xl import TransformerXL, is_absolute

__all__ = [
    "EvalLengths", "EvalSameLength", "HoldsNetwork", "KeyValueCache", "Memory",
    "Network", "NetworkConfig", "TransformerXL", "TransformerXLConfig", "Weights",
    "accumulator_dtype", "eval_mode", "find_device", "find_network", "has_bfloat16_units",
    "holds_keys", "is_absolute", "pack_weights",
]  # fmt: skip
