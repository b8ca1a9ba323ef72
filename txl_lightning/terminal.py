"""Output to a terminal that may be closed while a command works."""

import errno
import io
import os
import stat
from typing import TextIO


class TerminalFile(io.FileIO):
    """An open terminal; once it is gone, what is written is dropped, and no work is lost."""

    def write(self, data: bytes) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        null = os.open(os.devnull, os.O_WRONLY)
        # Also for writers that do not know this object, and for processes started later.
        os.dup2(null, self.fileno())
        os.close(null)
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
    buffer = io.BufferedWriter(TerminalFile(number, "wb", closefd=False))
    names = {"encoding": stream.encoding, "errors": stream.errors}
    return io.TextIOWrapper(buffer, **names, line_buffering=True)
