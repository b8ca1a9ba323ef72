"""What is measured, and how."""

from .metrics import MeanNats, RightAnswers, readings
from .protocols import segment_answers, segment_nats, stream_nats

__all__ = [
    "MeanNats",
    "RightAnswers",
    "readings",
    "segment_answers",
    "segment_nats",
    "stream_nats",
]
