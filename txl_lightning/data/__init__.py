"""Text into segments. Knows nothing of the network."""

from .errors import DataError

__all__ = ["DataError"]
