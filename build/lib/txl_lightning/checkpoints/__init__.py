"""Our own checkpoint files and folders; those of other codes are in convert/."""

from typing import Any

from .loading import LoadedCheckpoint, load, load_checkpoint
from .saving import save_folder

__all__ = ["LoadedCheckpoint", "load", "load_checkpoint", "load_original", "save_folder"]


def __getattr__(name: str) -> Any:
    if name != "load_original":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Public here since the first release; convert/ imports this package.
    from ..convert import load_original

    return load_original
