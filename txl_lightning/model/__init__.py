"""The network. Imports torch and nothing of ours."""

from .config import TransformerXLConfig, require
from .memory import Memory
from .mode import evaluating
from .transformer_xl import TransformerXL

__all__ = ["Memory", "TransformerXL", "TransformerXLConfig", "evaluating", "require"]
