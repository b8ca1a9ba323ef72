"""What a file must be: its size and its checksum."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError


@dataclass(frozen=True)
class Remote:
    """A file somewhere, known by what it must be."""

    url: str
    size: int | None
    """Bytes; None where nobody published it."""
    checksum: str
    """`sha256:...` or `md5:...`."""


def difference(path: Path, size: int | None, checksum: str | None) -> str:
    """What `path` is and what it had to be, or nothing where they are the same.

    Args:
        path: A file.
        size: Bytes; None where nobody published it.
        checksum: `sha256:...` or `md5:...`; None likewise.
    """
    found, due = [], []
    if size is not None:
        found.append(f"{path.stat().st_size} bytes")
        due.append(f"{size} bytes")
    if checksum is not None:
        algorithm, _, digest = checksum.partition(":")
        with path.open("rb") as file:
            found.append(f"{algorithm} {hashlib.file_digest(file, algorithm).hexdigest()}")
        due.append(f"{algorithm} {digest.lower()}")
    return "" if found == due else f"{' with '.join(found)}, not {' with '.join(due)}"


def verify(path: Path, remote: Remote) -> Path:
    """`path`, once it is sure that it is the file that `remote` describes.

    Raises:
        DataError: it is another file, or cannot be read.
    """
    try:
        wrong = difference(path, remote.size, remote.checksum)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); pass data.path") from error
    if wrong:
        raise DataError(f"{path}: another file ({wrong}); remove it, or pass data.path")
    return path
