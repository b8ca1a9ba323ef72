"""Mirror: copies of a run at a URL, made after each last.ckpt and fetched by a resume elsewhere.

URL/version_N/mirror.json              a random text by which a run is known from another one
URL/version_N/files/SHA256             contents of files
URL/version_N/states/NUMBER-SHA.json   a state of the run: its step, and the sha256 of each file

A state is written after its files, and its name contains its own checksum. So what a process that
is killed leaves is no state, also on a file system that does not replace files atomically.
"""

import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, StorageError, format_line, print_notice
from ..files import create_folder, hash_file, parse_json, write_text
from ..runs.folder import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LAST,
    METRICS,
    STATE,
    VOCAB,
    list_versions,
    parse_number,
)
from .loading import find_latest
from .saving import read_manifest_or_none

IDENTITY = "mirror.json"
SAVED = [f"{CHECKPOINTS}/{name}{end}" for name in (LAST, BEST) for end in ("", ".json")]
FILES = [CONFIG, VOCAB, STATE, METRICS, IDENTITY, *SAVED]
"""Files that a resume and the commands that measure a run need; a state may name no others."""


class Mirror:
    """The runs at a URL of any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        # Slow to import, and needed only here.
        from fsspec.core import url_to_fs

        self.url = url
        try:
            self.fs, self.root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ValueError(f"checkpoint.mirror: {url}: {error}") from error

    @contextmanager
    def explain_errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (CheckpointError, StorageError):
            raise
        # Each file system raises errors of its own.
        except Exception as error:
            reason = f"cannot be {verb} ({type(error).__name__}: {error})"
            raise StorageError(f"checkpoint.mirror: {self.url}: {reason}") from error

    def find(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def list_names(self, *parts: str) -> list[str]:
        """Return the sorted names in a folder; none if it does not exist."""
        self.fs.invalidate_cache()
        with suppress(FileNotFoundError):
            return sorted(Path(path).name for path in self.fs.ls(self.find(*parts), detail=False))
        return []

    def read_file(self, *parts: str) -> bytes:
        """Return the content of a file; nothing if it does not exist."""
        with suppress(FileNotFoundError):
            return self.fs.cat_file(self.find(*parts))
        return b""

    def load_state(self, run: str, name: str) -> dict[str, Any]:
        """Return the step and the checksums of a state; CheckpointError if it is not whole."""
        content = self.read_file(run, "states", name)
        where = f"{self.url}/{run}/states/{name}"
        if not name.endswith(f"-{hash_name(content)}.json"):
            raise CheckpointError(f"{where}: damaged, or not written to its end")
        return parse_json(where, content, {"step": int, "files": {...: str}}, CheckpointError)

    def claim(self, folder: Path) -> None:
        """Write the identity of a run; StorageError if another run has its number there."""
        if not (folder / IDENTITY).is_file():
            write_text(json.dumps({"id": uuid.uuid4().hex}), folder / IDENTITY)
        own = (folder / IDENTITY).read_bytes()
        run = folder.name
        with self.explain_errors("written"):
            for part in ("files", "states") if hasattr(self.fs, "auto_mkdir") else ():
                # Only on a disk: an object storage would make a bucket of a mistyped name.
                self.fs.makedirs(self.find(run, part), exist_ok=True)
            if not (there := self.read_file(run, IDENTITY)):
                self.fs.pipe_file(self.find(run, IDENTITY), own)
        if there not in (b"", own):
            expected = "expected resume auto, which continues it, or another URL"
            another = f"{self.url} has another run as {run}"
            raise StorageError(f"checkpoint.mirror: {another}; {expected}")

    def copy(self, folder: Path) -> None:
        """Copy a run as it is now; a failure is a warning, and the next copy has all of it."""
        try:
            # A user may have removed the folder, or damaged its manifest.
            if entries := read_manifest_or_none(folder / CHECKPOINTS / LAST):
                with self.explain_errors("written"):
                    self.upload(folder, next(iter(entries.values()))["step"])
        except StorageError as error:
            print_notice(f"warning: {format_line(str(error))}; the next last.ckpt is tried again")

    def upload(self, folder: Path, step: int) -> None:
        """Write the files that are not there, then a state; keep this and the last one."""
        run = folder.name
        files = {}
        for name in FILES:
            if (path := folder / name).is_file():
                files[name] = hash_file(path)
                there = self.find(run, "files", files[name])
                if not self.fs.exists(there) or self.fs.size(there) != path.stat().st_size:
                    self.fs.put_file(str(path), there)
        content = json.dumps({"step": step, "files": files}).encode()
        states = self.list_names(run, "states")
        used = {*files.values()}
        number = int(states[-1].partition("-")[0]) + 1 if states else 1
        state = f"{number:08}-{hash_name(content)}.json"
        self.fs.pipe_file(self.find(run, "states", state), content)
        for name in states[-1:]:
            with suppress(CheckpointError):
                used |= {*self.load_state(run, name)["files"].values()}
        for name in states[:-1]:
            self.fs.rm_file(self.find(run, "states", name))
        for name in {*self.list_names(run, "files")} - used:
            self.fs.rm_file(self.find(run, "files", name))

    def fetch(self, run: str, files: dict[str, str], folder: Path) -> None:
        """Copy the files of a state into a folder; CheckpointError if one is missing or damaged."""
        for name, digest in files.items():
            path = folder / name
            where = f"{self.url}/{run}"
            if name not in FILES:
                raise CheckpointError(f"{where}: a state names {name}, no file of a run")
            path.parent.mkdir(exist_ok=True)
            with self.explain_errors("read"), suppress(FileNotFoundError):
                self.fs.get_file(self.find(run, "files", digest), str(path))
            if not path.is_file() or hash_file(path) != digest:
                raise CheckpointError(f"{where}/files/{digest}: {name} is missing or damaged")


def hash_name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def fetch_newer(url: str, root: Path) -> list[str]:
    """Fetch the newest whole state at a URL if it is ahead of the runs under a root.

    A folder there that is behind is renamed. Returns the problems of states that were passed over.
    """
    mirror = Mirror(url)
    problems = []
    with mirror.explain_errors("read"):
        runs = [name for name in mirror.list_names() if parse_number(name) >= 0]
        for run in sorted(runs, key=parse_number, reverse=True):
            for name in reversed(mirror.list_names(run, "states")):
                try:
                    fetch_state(mirror, run, mirror.load_state(run, name), root)
                    return problems
                except CheckpointError as error:
                    problems.append(str(error))
    return problems


def fetch_state(mirror: Mirror, run: str, state: dict[str, Any], root: Path) -> None:
    def is_ahead() -> bool:
        newest = next(iter(list_versions(root)), None)
        if newest is None:
            return False
        checkpoint, _ = find_latest(newest)
        step = checkpoint.saved["global_step"] if checkpoint else -1
        return (parse_number(newest.name), step) >= (parse_number(run), state["step"])

    def fill(part: Path) -> None:
        mirror.fetch(run, state["files"], part)
        if (root / run).is_dir():
            (root / run).rename(root / f"replaced-{run}-{time.time_ns()}")
        print_notice(f"resume: step {state['step']} of {run} is fetched from {mirror.url}")

    create_folder(root / run, fill, is_ahead)
