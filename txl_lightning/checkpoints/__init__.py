"""Our own checkpoint files and folders; those of other codes are in convert/."""

from importlib import import_module
from typing import Any

from .runs import load, load_folder, load_run, read_checkpoint, save_folder

__all__ = ["load", "load_folder", "load_original", "load_run", "read_checkpoint", "save_folder"]


def __getattr__(name: str) -> Any:
    # Stays public here; imported on use, because convert/ is above this room.
    if name != "load_original":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("txl_lightning.convert").load_original
