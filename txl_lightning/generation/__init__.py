"""Text generation with memory: read state.py first, then decoding.py and candidates.py."""

from .candidates import score, score_candidates, start_scoring
from .decoding import Sampling, decode_steps, generate
from .prompts import Prompt, StreamingDetokenizer, encode_prompt
from .state import DecodingState, start_decoding

__all__ = [
    "DecodingState", "Prompt", "Sampling", "StreamingDetokenizer", "decode_steps", "encode_prompt",
    "generate", "score", "score_candidates", "start_decoding", "start_scoring",
]  # fmt: skip
