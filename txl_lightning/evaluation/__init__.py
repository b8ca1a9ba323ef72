"""What is measured, and how.

protocols.py   how a text is read, as data; start here
scoring.py     the nats of its tokens
stats.py       their sums, and how sure the mean is; metrics.py the same for Lightning
units.py       nats in other units
results.py     one evaluation as a record, with environment.py's
"""

from importlib import import_module
from typing import Any

from .environment import peak_memory
from .protocols import ALIASES, PROTOCOLS, Protocol, get_protocol
from .results import evaluate
from .scoring import score_text, segment_answers, segment_nats, stream_nats
from .stats import PerToken
from .units import readings

__all__ = [
    "ALIASES",
    "PROTOCOLS",
    "MeanNats",
    "PerToken",
    "Protocol",
    "RightAnswers",
    "evaluate",
    "get_protocol",
    "peak_memory",
    "readings",
    "score_text",
    "segment_answers",
    "segment_nats",
    "stream_nats",
]


def __getattr__(name: str) -> Any:
    # Only training needs them, and torchmetrics takes half as long to import as torch.
    if name not in ("MeanNats", "RightAnswers"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".metrics", __name__), name)
