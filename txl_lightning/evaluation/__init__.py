"""Evaluation of a model.

protocols.py    how a text is read, as data; start here
scoring.py      the nats of its tokens
results.py      one evaluation as a record: sums, confidence intervals, other units
metrics.py      sums for Lightning
run_metrics.py  the numbers of a run, from its metrics.csv
"""

from typing import Any

__all__ = ["stream_nats"]


def __getattr__(name: str) -> Any:
    if name != "stream_nats":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # On demand, because the metrics of a run need no torch.
    from .scoring import stream_nats

    return stream_nats
