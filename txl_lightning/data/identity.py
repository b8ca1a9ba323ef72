"""Which text it is: digests of what is read, computed once for files that do not change."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import DataError
from .spans import SPLITS, Span

SETTLED = 2 * 10**9
"""Nanoseconds after which a file that changes again is sure to get another time stamp."""


def short(described: Any) -> str:
    """A name for plain values that others do not share."""
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def text_digest(splits: Mapping[str, Sequence[Span]], root: Path) -> str:
    """sha256 of the whole text: train, val and test together.

    It is remembered under `root`, where that can be written, for as long as the files keep their
    size and time.

    Raises:
        DataError: a file cannot be read.
    """
    spans = [span for name in SPLITS for span in splits[name]]
    try:
        paths = {path: nth for nth, path in enumerate(dict.fromkeys(span.path for span in spans))}
        stamps = [stamp(path) for path in paths]
        cuts = [(paths[span.path], span.start, span.stop) for span in spans]
        seen = root / "prepared" / "seen" / short([stamps, cuts])
        if seen.is_file():
            return seen.read_text()
        sha256 = digest(spans)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error
    if all(time.time_ns() - changed > SETTLED for _, _, changed in stamps):
        note(seen, sha256)
    return sha256


def stamp(path: Path) -> tuple[str, int, int]:
    """What changes when a file does: its size, and the time it was changed in nanoseconds."""
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def digest(spans: Sequence[Span]) -> str:
    """sha256 of the spans, read one after the other."""
    sha256 = hashlib.sha256()
    for span in spans:
        for chunk in span.chunks():
            sha256.update(chunk)
    return sha256.hexdigest()


def note(path: Path, text: str) -> None:
    """Keep a text in a file, if that can be."""
    aside = path.with_suffix(f".{time.time_ns()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text)
        aside.replace(path)
    except OSError:
        # A prepared folder may be read-only; then the digest is computed every time.
        return
