"""Checkpoints of other codes: detect.py first; weight_names.py maps their tensors to ours."""

from .detect import load_any
from .huggingface import load_huggingface, save_huggingface
from .nvidia import load_nvidia, load_nvidia_state
from .original import config_of_original, load_original

__all__ = [
    "config_of_original",
    "load_any",
    "load_huggingface",
    "load_nvidia",
    "load_nvidia_state",
    "load_original",
    "save_huggingface",
]
