"""Checkpoints of other codes: detect.py first, then original.py, which the others descend from."""

from .detect import load_any_checkpoint
from .huggingface import load_huggingface, save_huggingface
from .nvidia import load_nvidia
from .original import load_original

__all__ = [
    "load_any_checkpoint", "load_huggingface", "load_nvidia", "load_original", "save_huggingface",
]  # fmt: skip
