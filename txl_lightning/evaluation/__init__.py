"""What is measured, and how.

protocols.py   how a text is read, as data; start here
scoring.py     the nats of its tokens
tally.py       their sums, and how sure the mean is; metrics.py the same for Lightning, and units
record.py      one evaluation in plain values, and with what machine.py says it was made
"""

from .machine import peak_memory
from .metrics import MeanNats, RightAnswers, readings
from .protocols import ALIASES, PROTOCOLS, Protocol, chosen
from .record import evaluate
from .scoring import segment_answers, segment_nats, stream_nats, text_parts
from .tally import PerToken

__all__ = [
    "ALIASES",
    "PROTOCOLS",
    "MeanNats",
    "PerToken",
    "Protocol",
    "RightAnswers",
    "chosen",
    "evaluate",
    "peak_memory",
    "readings",
    "segment_answers",
    "segment_nats",
    "stream_nats",
    "text_parts",
]
