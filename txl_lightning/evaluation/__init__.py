"""Measurement of a model.

protocols.py   how a text is read, as data; start here
scoring.py     the nats of its tokens
stats.py       their sums, and how sure the mean is
metrics.py     the same for Lightning; nats in other units
results.py     one evaluation as a record, with environment.py's
"""

from .scoring import stream_nats

__all__ = ["stream_nats"]
