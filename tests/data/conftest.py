"""Files, and documents that are read in pieces of any size."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from txl_lightning.data.text_files import FileSlice


@pytest.fixture
def write_files(tmp_path) -> Callable:
    """Write texts under their names in a folder of tmp_path."""

    def write(texts: dict[str, bytes], folder: str = "") -> Path:
        for name, text in texts.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        return tmp_path / folder

    return write


@dataclass(frozen=True)
class Pieces(FileSlice):
    """A document that is read `size` bytes at a time."""

    size: int = 1 << 20

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self.text), self.size):
            yield self.text[start : start + self.size]


@pytest.fixture(scope="session")
def document():
    def make(text: str | bytes, size: int = 1 << 20, start: int = 0) -> Pieces:
        text = text.encode() if isinstance(text, str) else text
        return Pieces(Path("a.txt"), start, start + len(text), text, size=size)

    return make
