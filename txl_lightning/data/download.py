"""The only code that touches the network."""

import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO

import requests
from filelock import FileLock
from pooch import HTTPDownloader
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ..errors import DataError, StorageError
from .checksums import Remote, difference, verify

CHUNK = 1 << 16
DELAYS = (1.0, 2.0, 4.0, 8.0)
TIMEOUT = (10.0, 30.0)
# We are named because some servers refuse what they take for a script; the encoding is there so
# that sizes and ranges mean bytes of the file.
HEADERS = {"User-Agent": "txl-lightning", "Accept-Encoding": "identity"}
CONTINUES = requests.codes.partial_content
PAST_THE_END = requests.codes.requested_range_not_satisfiable
MAY_PASS = {requests.codes.request_timeout, PAST_THE_END, requests.codes.too_many_requests}


def fetch(
    remote: Remote,
    target: Path,
    delays: Sequence[float] = DELAYS,
    timeout: tuple[float, float] = TIMEOUT,
) -> Path:
    """`target`, downloaded unless it is already there.

    What has arrived lies in `<target>.part`, where the next attempt and the next run go on. Of
    several processes one downloads and the others wait.

    Args:
        remote: What is wanted.
        target: Where it belongs.
        delays: Seconds before each further attempt.
        timeout: Seconds to wait for a connection, and for anything more to arrive.

    Raises:
        DataError: it cannot be downloaded, or what is there is another file.
        StorageError: it cannot be written.
    """
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(_beside(target, "lock")):
                if not target.exists():
                    return _download(remote, target, delays, timeout)
    except requests.RequestException as error:
        raise _missing(target, f"{remote.url} cannot be read ({_reason(error)})") from error
    except OSError as error:
        advice = "make room or set data.data_dir"
        message = f"{target}: missing, and cannot be written ({_reason(error)}): {advice}"
        raise StorageError(f"{message}; or put the file there yourself") from error
    return verify(target, remote)


def _download(
    remote: Remote, target: Path, delays: Sequence[float], timeout: tuple[float, float]
) -> Path:
    part = _beside(target, "part")
    if remote.size is not None and part.exists() and part.stat().st_size > remote.size:
        part.unlink()
    with _bar(target.name) as bar:
        _say(bar, f"downloading {remote.url} to {target}")
        _persist(remote, part, bar, delays, timeout)
        if wrong := difference(part, remote.size, remote.checksum):
            aside = part.replace(_beside(target, "wrong"))
            raise _missing(target, f"{remote.url} is another file ({wrong}; kept as {aside})")
        part.replace(target)
        _say(bar, f"downloaded {target} ({target.stat().st_size:,} bytes)")
    return target


def _persist(
    remote: Remote, part: Path, bar: Progress, delays: Sequence[float], timeout: tuple[float, float]
) -> None:
    """Attempts until all is there; the last one's error is the one that is raised."""
    for delay in delays:
        try:
            return _attempt(remote, part, bar, timeout)
        except requests.RequestException as error:
            if not _may_pass(error):
                raise
            reason = _reason(error)
        _print(bar, f"{remote.url}: {reason}; again in {delay:g} s")
        time.sleep(delay)
    return _attempt(remote, part, bar, timeout)


def _attempt(remote: Remote, part: Path, bar: Progress, timeout: tuple[float, float]) -> None:
    """One request for what `part` lacks."""
    with part.open("ab") as file, ExitStack() as answers:
        start = file.tell()
        if start and start == remote.size:
            return
        body = _Body(file, remote.size, bar, answers)
        headers = HEADERS | ({"Range": f"bytes={start}-"} if start else {})
        hooks = {"response": body.place}
        get = HTTPDownloader(chunk_size=CHUNK, headers=headers, timeout=timeout, hooks=hooks)
        get(remote.url, body, None)
        body.end()


class _Body:
    """What pooch writes into: the part file, with a bar that moves as it grows.

    Args:
        file: The part, open to append.
        size: Bytes of the whole file, as far as they are known.
        bar: Shows its first task.
        answers: Closes what the server said, when the attempt is over.
    """

    def __init__(self, file: BinaryIO, size: int | None, bar: Progress, answers: ExitStack) -> None:
        self.file, self.size, self.bar, self.answers = file, size, bar, answers

    def place(self, response: requests.Response, **_: Any) -> None:
        """Keep what is there if the answer continues it; make room if the answer begins again."""
        self.answers.enter_context(closing(response))
        # Some servers call a .gz an encoding; unpacked on the way it would be another file.
        response.raw.headers.discard("Content-Encoding")
        length = response.headers.get("Content-Length", "")
        if response.status_code == CONTINUES:
            length = self._continue(response.headers.get("Content-Range", ""))
        elif response.status_code == PAST_THE_END or (response.ok and not response.is_redirect):
            self._empty()
        else:
            return
        if length.isdecimal():
            self.size = int(length)
        self.bar.reset(self.bar.task_ids[0], total=self.size, completed=self.file.tell())

    def write(self, chunk: bytes) -> None:
        """Append."""
        self.file.write(chunk)
        self.bar.advance(self.bar.task_ids[0], len(chunk))

    def flush(self) -> None:
        """Let it reach the disk before anything can go wrong with the next piece."""
        self.file.flush()

    def end(self) -> None:
        """Refuse an end that came too early."""
        held = self.file.tell()
        if self.size is not None and held < self.size:
            raise requests.ConnectionError(f"it broke off at {held:,} of {self.size:,} bytes")

    def _continue(self, extent: str) -> str:
        """The whole file's bytes, in digits, once it is sure that the body begins where we end."""
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", extent)
        if not match or int(match[1]) != self.file.tell():
            self._empty()
            raise requests.ConnectionError(f"it sent {extent!r}, which was not asked for")
        return match[2]

    def _empty(self) -> None:
        self.file.seek(0)
        self.file.truncate()


def _may_pass(error: requests.RequestException) -> bool:
    """Whether another attempt may end better."""
    if isinstance(error, requests.HTTPError):
        return error.response.status_code in MAY_PASS or error.response.status_code >= 500
    broken = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, broken)


def _reason(error: BaseException) -> str:
    """What happened at the bottom of it, in a few words."""
    if isinstance(error, requests.HTTPError):
        return f"HTTP {error.response.status_code}"
    if isinstance(error, requests.RequestException):
        while error.__context__:
            error = error.__context__
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def _missing(target: Path, why: str) -> DataError:
    return DataError(f"{target}: missing, and {why}; put the file there yourself")


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f"{target.name}.{ending}")


def _bar(name: str) -> Progress:
    """Bytes, their rate and the time left, where stderr is a terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
    bar.add_task(name, total=None)
    return bar


def _say(bar: Progress, line: str) -> None:
    """What the bar would show, where there is none."""
    if bar.disable:
        _print(bar, line)


def _print(bar: Progress, line: str) -> None:
    bar.console.print(line, soft_wrap=True, markup=False, highlight=False)
