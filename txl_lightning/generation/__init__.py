"""Text generation with memory: read state.py first, then decoding.py and candidates.py."""

from .candidates import score, score_candidates, start_scoring
from .decoding import Sampling, decode_steps, generate
from .incoming import ScoredToken, join_words
from .prompts import Prompt, StreamingDetokenizer, encode_prompt
from .sessions import Session, Sessions
from .state import DecodingState, start_decoding

__all__ = [
    "DecodingState", "Prompt", "Sampling", "ScoredToken", "Session", "Sessions",
    "StreamingDetokenizer", "decode_steps", "encode_prompt", "generate", "join_words", "score",
    "score_candidates", "start_decoding", "start_scoring",
]  # fmt: skip
