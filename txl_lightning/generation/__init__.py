"""Text that a network writes: texts.py first; then sampling, decoding, beam, stream, saved."""

from .beam import beam_search, search
from .decoding import continued, generate
from .sampling import Sampling
from .saved import load, save
from .stream import TextStream
from .texts import Texts, begun

__all__ = [
    "Sampling",
    "TextStream",
    "Texts",
    "beam_search",
    "begun",
    "continued",
    "generate",
    "load",
    "save",
    "search",
]
