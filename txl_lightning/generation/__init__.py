"""Text generation with memory: state.py first, then decoding.py, sampling.py, streaming.py."""

from .decoding import beam_search, decode_steps, generate, search_beams
from .sampling import Sampling
from .state import DecodingState, start_decoding
from .streaming import StreamingDetokenizer

__all__ = [
    "DecodingState", "Sampling", "StreamingDetokenizer", "beam_search", "decode_steps", "generate",
    "search_beams", "start_decoding",
]  # fmt: skip
