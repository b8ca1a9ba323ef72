"""Documents that come in pieces of any size."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Pieces:
    """A document that is read so many bytes at a time."""

    path: Path
    start: int
    text: bytes
    size: int

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self.text), self.size):
            yield self.text[start : start + self.size]


@pytest.fixture(scope="session")
def document():
    def make(text: str | bytes, size: int = 1 << 20, start: int = 0) -> Pieces:
        text = text.encode() if isinstance(text, str) else text
        return Pieces(Path("a.txt"), start, text, size)

    return make
