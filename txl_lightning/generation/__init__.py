"""Text that a network writes: texts.py first; then sampling, decoding, beam, stream, saved."""

from .beam import beam_search, search
from .decoding import continued, generate
from .sampling import Sampling
from .state import DecodingState, begun
from .state_file import load, save
from .streaming import StreamingDetokenizer

__all__ = [
    "DecodingState",
    "Sampling",
    "StreamingDetokenizer",
    "beam_search",
    "begun",
    "continued",
    "generate",
    "load",
    "save",
    "search",
]
