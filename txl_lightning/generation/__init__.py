"""Text generation with memory: state.py first, then generate.py, sampling.py, beam.py."""

from .beam import beam_search, search_beams
from .generate import decode_steps, generate
from .sampling import Sampling
from .state import DecodingState, start_decoding
from .streaming import StreamingDetokenizer

__all__ = [
    "DecodingState",
    "Sampling",
    "StreamingDetokenizer",
    "beam_search",
    "decode_steps",
    "generate",
    "search_beams",
    "start_decoding",
]
