"""What is measured, and how."""

from .metrics import MeanNats, readings
from .protocols import segment_nats, stream_nats

__all__ = ["MeanNats", "readings", "segment_nats", "stream_nats"]
