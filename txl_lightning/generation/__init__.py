"""Text generation with memory: read state.py first, then decoding.py and candidates.py."""

from .candidates import score, score_candidates
from .decoding import Sampling, beam_search, decode_steps, generate, search_beams
from .prompts import Prompt, StreamingDetokenizer, encode_prompt
from .state import DecodingState, start_decoding

__all__ = [
    "DecodingState", "Prompt", "Sampling", "StreamingDetokenizer", "beam_search", "decode_steps",
    "encode_prompt", "generate", "score", "score_candidates", "search_beams", "start_decoding",
]  # fmt: skip
