"""Our own checkpoint files and folders; those of other codes are in convert/."""

from .loading import LoadedCheckpoint, load, load_checkpoint
from .saving import save_folder

__all__ = ["LoadedCheckpoint", "load", "load_checkpoint", "save_folder"]
