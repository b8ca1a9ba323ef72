"""What a file must be: its size and its checksum."""

import hashlib
from pathlib import Path


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
