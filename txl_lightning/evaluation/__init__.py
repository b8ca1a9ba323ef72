"""Evaluation of a model.

protocols.py    how a text is read, as data; start here
scoring.py      the nats of its tokens, and their sums, intervals and other units as a record
published.py    the published results of protocols, and whether an evaluation reaches one
tuning.py       the choice of what an evaluation learns from its text
"""

from .scoring import stream_nats

__all__ = ["stream_nats"]
