"""Networks whose memories are compared with the Transformer-XL's, each in one file."""

from .compressive import CompressiveTransformerConfig
from .gated_delta_net import GatedDeltaNetConfig
from .lstm import LSTMConfig
from .mamba2 import Mamba2Config
from .recurrent_memory import RecurrentMemoryTransformerConfig

__all__ = [
    "CompressiveTransformerConfig",
    "GatedDeltaNetConfig",
    "LSTMConfig",
    "Mamba2Config",
    "RecurrentMemoryTransformerConfig",
]
