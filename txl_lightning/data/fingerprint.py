"""Which text it is: what is known of files is found out once, while they do not change."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from .spans import SPLITS, Span

SETTLED = 2 * 10**9
"""Nanoseconds after which a file that changes again is sure to get another time stamp."""


def short(described: Any) -> str:
    """A name for plain values that others do not share."""
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def remembered(what: Any, paths: Iterable[Path], root: Path, find: Callable[[], Any]) -> Any:
    """What `find` finds out about some files, in plain values.

    It is kept under `root`, where that can be written, for as long as the files keep their size and
    time.
    """
    stamps = [stamp(path) for path in paths]
    seen = root / "prepared" / "seen" / short([what, stamps])
    if seen.is_file():
        return json.loads(seen.read_text())
    found = find()
    if all(time.time_ns() - changed > SETTLED for _, _, changed in stamps):
        note(seen, json.dumps(found))
    return found


def text_digest(splits: Mapping[str, Sequence[Span]], root: Path) -> str:
    """sha256 of the whole text: train, val and test together.

    Raises:
        DataError: a file cannot be read.
    """
    spans = [span for name in SPLITS for span in splits[name]]
    paths = {path: nth for nth, path in enumerate(dict.fromkeys(span.path for span in spans))}
    cuts = [(paths[span.path], span.start, span.stop) for span in spans]
    try:
        return remembered(["sha256", cuts], paths, root, lambda: digest(spans))
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


def stamp(path: Path) -> tuple[str, int, int]:
    """What changes when a file does: its size, and the time it was changed in nanoseconds."""
    status = path.stat()
    return os.path.abspath(path), status.st_size, status.st_mtime_ns


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
        # A prepared folder may be read-only; then it is found out every time.
        return
