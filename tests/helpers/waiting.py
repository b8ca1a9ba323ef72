"""Waiting for what other processes and threads do."""

import subprocess
import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], *processes: subprocess.Popen, seconds: float = 120
) -> None:
    """Wait for a condition, before which none of these processes may end."""
    stop = time.monotonic() + seconds
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < stop
        time.sleep(0.02)
