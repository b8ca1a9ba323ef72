"""Files to read, and disks that are full."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


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


@pytest.fixture
def limit_file_size() -> Callable:
    """Let no file grow beyond some bytes, as on a full disk."""

    @contextmanager
    def limit(n_byte: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_byte, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit
