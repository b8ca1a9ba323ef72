"""Standard streams that nobody or no disk takes any more, and a progress bar."""

import errno
import io
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TextIO

from .errors import print_notice, show_controls

Advance = Callable[[int], object]  # called with the amount done since the last call


class OutputFile(io.FileIO):
    """A standard stream, whose name is in its errors.

    Once a terminal is gone, what is written is dropped, and no work is lost.
    """

    stream: TextIO
    label: str
    is_device: bool

    def write(self, data: bytes) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO or not self.is_device:
                raise OSError(error.errno, error.strerror, self.label) from error
        # Also for writers that do not know this object, and for processes started later.
        point_at_null(self.fileno())
        return super().write(data)


def open_output(stream: TextIO, label: str) -> TextIO:
    """Return a standard stream whose errors name it, and which a closed terminal does not end."""
    try:
        number = stream.fileno()
    # A stream in memory.
    except OSError:
        return stream
    file = OutputFile(number, "wb", closefd=False)
    file.stream = stream  # which would close the number when it is deleted
    file.label = label
    # isatty is false for a terminal that is gone already.
    file.is_device = stat.S_ISCHR(os.fstat(number).st_mode)
    by_lines = file.is_device or stream.line_buffering or stream.write_through
    names = {"encoding": stream.encoding, "errors": stream.errors}
    return io.TextIOWrapper(io.BufferedWriter(file), **names, line_buffering=by_lines)


def drop_unwritten(*streams: TextIO) -> None:
    """Drop what cannot be written; at exit, Python would try again and change the exit code."""
    for stream in streams:
        try:
            stream.flush()
        except OSError:
            point_at_null(stream.fileno())


def point_at_null(number: int) -> None:
    """Make the number of an open file that of the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def is_stdout(path: str | None) -> bool:
    """Return True for a path of the file or pipe that the standard output writes to."""
    with suppress(OSError):
        return path is not None and os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    return False


@contextmanager
def show_progress(task: str, total: int | None, in_bytes: bool = True) -> Iterator[Advance]:
    """Show a progress bar of `total` bytes or parts; yield the function that advances it."""
    # rich is slow to import, and a prepared text needs no bar.
    from rich import progress
    from rich.console import Console

    amount = progress.DownloadColumn() if in_bytes else progress.MofNCompleteColumn()
    name = progress.TextColumn("{task.description}", markup=False)
    columns = name, progress.BarColumn(24), amount, progress.TimeRemainingColumn()
    # Print stdout above the bar, unless stdout is a file: rich.progress.track would not ask.
    is_terminal = bool(sys.stdout and sys.stdout.isatty())
    options = {"console": Console(stderr=True), "disable": not sys.stderr.isatty()}
    with progress.Progress(*columns, **options, redirect_stdout=is_terminal) as bar:
        yield partial(bar.advance, bar.add_task(show_controls(task), total=total))


def announce_minutes(
    advance: Advance, total: int, first: int, clock: Callable[[], float] = time.monotonic
) -> Advance:
    """Return `advance` with a line, after the first bytes, on how long the others will take; none
    if these are few."""
    began = clock()
    n_done = 0

    def count(n_byte: int) -> None:
        nonlocal n_done
        advance(n_byte)
        is_first = n_done < first <= n_done + n_byte
        n_done += n_byte
        if is_first and n_done < total / 2:
            minutes = (clock() - began) / n_done * (total - n_done) / 60
            print_notice(f"about {math.ceil(minutes)} min until all is encoded")

    return count
