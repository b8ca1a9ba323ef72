"""Networks whose memories are compared with the Transformer-XL's, each in one file."""

from .compressive import CompressiveTransformerConfig
from .gated_delta_net import GatedDeltaNetConfig
from .lstm import LSTMConfig
from .mamba2 import Mamba2Config
from .recurrent_memory import RecurrentMemoryTransformerConfig
from .transformers_config import HuggingFaceConfig

__all__ = [
    "CompressiveTransformerConfig",
    "GatedDeltaNetConfig",
    "HuggingFaceConfig",
    "LSTMConfig",
    "Mamba2Config",
    "RecurrentMemoryTransformerConfig",
]
