"""Training with Lightning: LanguageModel, optimizers, callbacks, and the command line of fit."""

from .module import LanguageModel
from .optimizers import OptimConfig

__all__ = ["LanguageModel", "OptimConfig"]
