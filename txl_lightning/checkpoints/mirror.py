"""Mirror: copies of a run at a URL, made in the background and fetched by a resume elsewhere.

URL/version_N/files/SHA256             contents of files
URL/version_N/states/NUMBER-SHA.json   a state of the run: its step, and the sha256 of each file

A state is written after its files, and its name contains its own checksum: what a process that is
killed leaves is no state, also on a file system that does not replace files atomically.
"""

import hashlib
import io
import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CheckpointError, StorageError, format_line, print_notice
from ..files import T, create_folder, parse_json, sha256_file, write_text
from ..runs.folder import BEST, CHECKPOINTS, CONFIG, LAST, METRICS, STATE, VOCAB, parse_number
from .loading import find_latest
from .saving import find_newest_step, load_previous_entries

IDENTITY = "mirror.json"
"""A random text by which a run is known from another one of the same number."""
SAVED = [f"{CHECKPOINTS}/{name}{end}" for name in (LAST, BEST) for end in ("", ".json")]
FILES = [CONFIG, VOCAB, STATE, METRICS, IDENTITY, *SAVED]
"""What a resume and the commands that measure a run need; a state may name nothing else."""
STATE_SHAPE, N_STATE = {"step": int, "files": {...: str}}, 2
"""Of the content of a state, and the number of states that are kept."""
ATTEMPTS, FIRST_PAUSE, MAX_PAUSE = 5, 0.5, 60.0
"""Tries of a request, and seconds between them, each pause twice as long as the last."""
WAIT = 120.0  # most seconds that the end of a run waits for the last upload
COPIED = 1 << 20


class RemoteFolder:
    """The runs at a URL of any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        # Slow to import, and needed only here.
        from fsspec.core import url_to_fs

        self.url = url
        try:
            self.fs, self.root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ValueError(f"checkpoint.mirror: {url}: {error}") from error

    def request(self, verb: str, call: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a call; after ATTEMPTS failures raise StorageError."""
        for attempt in range(ATTEMPTS):
            try:
                return call(*arguments)
            except (CheckpointError, StorageError):
                raise
            # Each file system raises errors of its own.
            except Exception as error:
                failure = error
                if attempt < ATTEMPTS - 1:
                    time.sleep(FIRST_PAUSE * 2**attempt)
        reason = f"{type(failure).__name__}: {failure}"
        raise StorageError(f"checkpoint.mirror: {self.url}: cannot be {verb} ({reason})")

    def list_names(self, path: str) -> list[str]:
        """Return the sorted names in a folder; none if it does not exist."""
        self.fs.invalidate_cache()
        with suppress(FileNotFoundError):
            paths = self.fs.ls(f"{self.root}/{path}".rstrip("/"), detail=False)
            return sorted(Path(each).name for each in paths)
        return []

    def list_states(self) -> list[tuple[str, str]]:
        """Return runs and names of their states, the latest run and its newest state first."""
        names = [name for name in self.list_names("") if parse_number(name) >= 0]
        runs = sorted(names, key=parse_number, reverse=True)
        return [(run, name) for run in runs for name in reversed(self.list_names(f"{run}/states"))]

    def load_state(self, run: str, name: str) -> dict[str, Any]:
        """Return the step and the checksums of a state; CheckpointError if it is not whole."""
        path = f"{run}/states/{name}"
        try:
            content = self.fs.cat_file(f"{self.root}/{path}")
        except FileNotFoundError as error:
            raise CheckpointError(f"{self.url}/{path}: removed meanwhile") from error
        if not name.endswith(f"-{hash_name(content)}.json"):
            raise CheckpointError(f"{self.url}/{path}: damaged, or not written to its end")
        return parse_json(f"{self.url}/{path}", content, STATE_SHAPE, CheckpointError)

    def fetch(self, run: str, state: dict[str, Any], folder: Path) -> None:
        """Copy the files of a state into a folder; CheckpointError if one is missing or damaged."""
        for name, digest in state["files"].items():
            source, target = f"{run}/files/{digest}", folder / name
            if name not in FILES:
                raise CheckpointError(f"{self.url}/{run}: a state names {name}, no file of a run")
            target.parent.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                self.fs.get_file(f"{self.root}/{source}", str(target))
            if not target.is_file() or sha256_file(target) != digest:
                raise CheckpointError(f"{self.url}/{source}: {name} is missing or damaged")

    def write_file(self, path: str, file: BinaryIO) -> None:
        """Write a file, unless there is one of its size: a content has its checksum as its name."""
        path, n_byte = f"{self.root}/{path}", file.seek(0, io.SEEK_END)
        file.seek(0)
        with suppress(FileNotFoundError):
            if self.fs.size(path) == n_byte:
                return
        if hasattr(self.fs, "auto_mkdir"):
            # Only folders of a disk: an object storage would make a bucket of a mistyped name.
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self.fs.open(path, "wb") as target:
            shutil.copyfileobj(file, target, COPIED)

    def remove_unused(self, run: str) -> None:
        """Remove all but the newest states, then the files that these do not name."""
        names, used = self.list_names(f"{run}/states"), set[str]()
        for name in names[:-N_STATE]:
            self.fs.rm_file(f"{self.root}/{run}/states/{name}")
        for name in names[-N_STATE:]:
            with suppress(CheckpointError):
                used |= {*self.load_state(run, name)["files"].values()}
        for digest in {*self.list_names(f"{run}/files")} - used:
            self.fs.rm_file(f"{self.root}/{run}/files/{digest}")


def hash_name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def fetch_newer(url: str, root: Path) -> list[str]:
    """Fetch the newest whole state at a URL if it is ahead of the runs under a root, where a folder
    that is behind is renamed; return the problems of states that were passed over."""
    remote, problems = RemoteFolder(url), []
    for run, name in remote.request("read", remote.list_states):
        try:
            fetch_state(remote, run, name, root)
            break
        except CheckpointError as error:
            problems.append(str(error))
    return problems


def fetch_state(remote: RemoteFolder, run: str, name: str, root: Path) -> None:
    state = remote.request("read", remote.load_state, run, name)

    def is_ahead() -> bool:
        newest, _ = find_latest(root)
        if newest is None:
            return False
        number, step = parse_number(newest.run_folder.name), newest.saved["global_step"]
        return (number, step) >= (parse_number(run), state["step"])

    def fill(part: Path) -> None:
        remote.request("read", remote.fetch, run, state, part)
        if (root / run).is_dir():
            (root / run).rename(root / f"replaced-{run}-{time.time_ns()}")
        print_notice(f"resume: step {state['step']} of {run} is fetched from {remote.url}")

    create_folder(root / run, fill, is_ahead)


@dataclass(frozen=True)
class Snapshot:
    """A run's files as they were when last.ckpt was written; later writes replace the files."""

    step: int
    files: dict[str, BinaryIO]

    @classmethod
    def take(cls, folder: Path) -> "Snapshot":
        files: dict[str, BinaryIO] = {}
        for name in FILES:
            # A user may have removed the folder.
            with suppress(OSError):
                path, is_large = folder / name, name.endswith(".ckpt")
                # An open file stays what it is when another one is renamed to its name.
                files[name] = path.open("rb") if is_large else io.BytesIO(path.read_bytes())
        return cls(int(find_newest_step(load_previous_entries(folder / CHECKPOINTS / LAST))), files)

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class Mirror:
    """Copies a run's folder to a URL in a thread; of several waiting snapshots only the last.

    StorageError if nothing can be written there, or another run has this number there.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.remote, self.folder = RemoteFolder(url), folder
        self.lock, self.is_failing = threading.Lock(), False
        self.waiting: Snapshot | None = None
        self.thread: threading.Thread | None = None
        if not (path := folder / IDENTITY).is_file():
            write_text(json.dumps({"id": uuid.uuid4().hex}), path)
        self.remote.request("read", self.refuse_another_run)
        target = f"{folder.name}/files/{sha256_file(path)}"
        identity = io.BytesIO(path.read_bytes())
        self.remote.request("written", self.remote.write_file, target, identity)

    def refuse_another_run(self) -> None:
        run, digest = self.folder.name, sha256_file(self.folder / IDENTITY)
        for name in reversed(self.list_states()):
            with suppress(CheckpointError):
                if self.remote.load_state(run, name)["files"].get(IDENTITY) == digest:
                    return
                expected = "expected resume auto, which continues it, or another URL"
                another = f"{self.remote.url} has another run as {run}"
                raise StorageError(f"checkpoint.mirror: {another}; {expected}")

    def list_states(self) -> list[str]:
        return self.remote.list_names(f"{self.folder.name}/states")

    def submit(self) -> None:
        """Copy the files as they are now, as soon as an upload under way has ended."""
        # A user may have removed the folder, or damaged its manifest.
        if not load_previous_entries(self.folder / CHECKPOINTS / LAST):
            return
        snapshot = Snapshot.take(self.folder)
        if f"{CHECKPOINTS}/{LAST}" not in snapshot.files:
            return
        with self.lock:
            if self.waiting:
                self.waiting.close()
            self.waiting = snapshot
            if self.thread is None:
                self.thread = threading.Thread(target=self.upload_waiting, daemon=True)
                self.thread.start()

    def finish(self) -> None:
        """Copy the files as they are now, and wait until it is done, at most WAIT seconds."""
        self.submit()
        if thread := self.thread:
            thread.join(WAIT)
            if thread.is_alive():
                problem = f"no upload in {WAIT:.0f} s; it is given up"
                print_notice(f"warning: {self.remote.url}: {problem}")

    def upload_waiting(self) -> None:
        """Upload what waits until nothing does; failures in succession are one warning."""
        pause = FIRST_PAUSE
        while snapshot := self.take_waiting():
            try:
                self.upload(snapshot)
            # Each file system raises errors of its own; none of them must stop training.
            except Exception as error:
                if not self.is_failing:
                    reason = f"{self.remote.url}: {type(error).__name__}: {error}"
                    print_notice(f"warning: {format_line(reason)}; it is tried again")
                self.is_failing = True
                with self.lock:
                    if self.waiting:
                        snapshot.close()
                    self.waiting = self.waiting or snapshot
                time.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE)
            else:
                pause, self.is_failing = FIRST_PAUSE, False

    def take_waiting(self) -> Snapshot | None:
        with self.lock:
            snapshot, self.waiting = self.waiting, None
            if snapshot is None:
                self.thread = None
            return snapshot

    def upload(self, snapshot: Snapshot) -> None:
        """Write the files of a snapshot, then its state; remove what is no longer needed."""
        run, digests = self.folder.name, {}
        self.remote.fs.invalidate_cache()
        for name, file in snapshot.files.items():
            file.seek(0)
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
            self.remote.write_file(f"{run}/files/{digests[name]}", file)
        content = json.dumps({"step": snapshot.step, "files": digests}).encode()
        numbers = [int(name.partition("-")[0]) for name in self.list_states()]
        name = f"{max(numbers, default=0) + 1:08}-{hash_name(content)}.json"
        self.remote.write_file(f"{run}/states/{name}", io.BytesIO(content))
        snapshot.close()
        self.remote.remove_unused(run)
