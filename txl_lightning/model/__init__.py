"""The network. Imports torch and nothing of ours."""

from .config import TransformerXLConfig
from .memory import Memory
from .transformer_xl import TransformerXL

__all__ = ["Memory", "TransformerXL", "TransformerXLConfig"]
