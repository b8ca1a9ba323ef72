"""Lightning: the module that owns the network, how it is trained, and the command line."""

from .module import LanguageModel
from .optim import OptimConfig

__all__ = ["LanguageModel", "OptimConfig"]
