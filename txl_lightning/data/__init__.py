"""Text into segments. Knows nothing of the network."""

from .datamodule import CorpusDataModule
from .errors import DataError
from .stream import OrderedStream, Segment

__all__ = ["CorpusDataModule", "DataError", "OrderedStream", "Segment"]
