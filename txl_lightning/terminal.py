"""Output to a terminal that may be closed while a command works, or to a full disk."""

import errno
import io
import os
import stat
from typing import TextIO


class TerminalFile(io.FileIO):
    """An open terminal; once it is gone, what is written is dropped, and no work is lost."""

    stream: TextIO

    def write(self, data: bytes) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        # Also for writers that do not know this object, and for processes started later.
        point_at_null(self.fileno())
        return super().write(data)


def outlive_terminal(stream: TextIO) -> TextIO:
    """Return a stream that a closed terminal does not end; files and pipes as they are."""
    try:
        number = stream.fileno()
        # isatty is false for one that is gone already.
        is_device = stat.S_ISCHR(os.fstat(number).st_mode)
    # A stream in memory.
    except OSError:
        return stream
    if not is_device:
        return stream
    file = TerminalFile(number, "wb", closefd=False)
    file.stream = stream  # which would close the number when it is deleted
    names = {"encoding": stream.encoding, "errors": stream.errors}
    return io.TextIOWrapper(io.BufferedWriter(file), **names, line_buffering=True)


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
