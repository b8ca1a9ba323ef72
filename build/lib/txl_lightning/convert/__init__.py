"""Checkpoints of other codes: read detect.py, then original.py; the others derive from it."""

from .detect import load_any_checkpoint
from .huggingface import load_huggingface, save_huggingface
from .nvidia import load_nvidia
from .original import load_original

__all__ = [
    "load_any_checkpoint", "load_huggingface", "load_nvidia", "load_original", "save_huggingface",
]  # fmt: skip
