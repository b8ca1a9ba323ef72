"""Files at URLs, read by fsspec: whole ones, which are copied once and compared with a checksum."""

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import DataError
from ..files import T, explain_write_errors, sha256_file

# Tries of a request, and the seconds after the first one; each pause is twice the one before.
ATTEMPTS, FIRST_PAUSE = 6, 0.1
# What to do about errors that trying again does not mend.
HINTS = {
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "PermissionError": "its credentials may not read it",
    "FileNotFoundError": "expected a store written by prepare --out, with manifest.json",
}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # errors of the disk, not of the network


def read_remote(url: str, read: Callable[[Any, str], T]) -> T:
    """Return what `read` returns of fsspec's file system and the path in it.

    It is tried again after an error, or a wrong answer: clients do not notice a truncated one.
    """
    # Slow to import, and needed only here.
    from fsspec.core import url_to_fs

    try:
        fs, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise DataError(f"data.store: {url}: {error}") from error
    for attempt in range(ATTEMPTS):
        try:
            return read(fs, path)
        # Each file system raises errors of its own.
        except Exception as error:
            kind, failure = type(error).__name__, error
            if getattr(error, "errno", None) in FULL:
                raise
            if kind in HINTS:
                break
        time.sleep(FIRST_PAUSE * 2**attempt)
    if isinstance(failure, DataError):
        raise failure
    reason = HINTS.get(kind) or f"{ATTEMPTS} tries failed: {' '.join(str(failure).split())}"
    raise DataError(f"data.store: {url}: cannot be read: {reason}") from failure


def fetch_file(url: str, sha256: str, folder: Path) -> Path:
    """Return the copy of a file in a folder, where its checksum is its name; fetch a missing one.

    Unlike a copy of fsspec's filecache it is whole or absent, and never replaced while it is read.
    """
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise DataError(f"{url}: invalid checksum {sha256}; expected 64 hexadecimal digits")
    path = folder / sha256

    def fetch(fs: Any, name: str) -> None:
        part = path.with_name(f"{sha256}.part")
        fs.get_file(name, str(part))
        if (actual := sha256_file(part)) != sha256:
            raise DataError(f"{url}: damaged: its checksum is {actual}, not {sha256}")
        os.replace(part, path)

    with explain_write_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.exists():
                read_remote(url, fetch)
    return path
