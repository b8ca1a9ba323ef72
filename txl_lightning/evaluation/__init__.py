"""Evaluation of a model.

protocols.py    how a text is read, as data; start here
scoring.py      the nats of its tokens
results.py      one evaluation as a record: sums, confidence intervals, other units
metrics.py      sums for Lightning
"""

from .scoring import stream_nats

__all__ = ["stream_nats"]
