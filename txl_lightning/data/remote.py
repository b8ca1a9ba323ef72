"""Files at URLs that fsspec reads, such as s3://bucket/store."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fsspec.core import url_to_fs

from ..errors import DataError


def read_remote(url: str, name: str) -> bytes:
    """Return the content of a file in a folder at a URL; DataError if it cannot be read."""
    with explain_errors(url):
        fs, path = url_to_fs(url)
        return fs.cat_file(f"{path}/{name}")


def copy_remote(url: str, names: Iterable[str], folder: Path) -> None:
    """Copy files in a folder at a URL into a folder; DataError if one cannot be read."""
    with explain_errors(url):
        fs, path = url_to_fs(url)
        for name in names:
            fs.get_file(f"{path}/{name}", str(folder / name))


@contextmanager
def explain_errors(url: str) -> Iterator[None]:
    """Raise DataError in one line for all but errors of the disk that is written."""
    try:
        yield
    # Each file system raises errors of its own.
    except Exception as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"data.store: {url}: cannot be fetched ({reason})") from error
