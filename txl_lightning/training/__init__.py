"""Lightning: the module that owns the network, how it is trained, and the command line."""

from .module import LanguageModel
from .optimizers import OptimConfig

__all__ = ["LanguageModel", "OptimConfig"]
