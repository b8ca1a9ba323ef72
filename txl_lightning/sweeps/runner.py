"""A trial as a process, and who else may be at work in a sweep's folder."""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from ..signals import EXIT, SAVE, PendingSignals, handle_signals

POLL = 1.0
"""Seconds between two looks at what a trial has logged."""
LOG = "log.txt"


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    seconds: float
    exit_code: int = 0
    """The sweep's own, if a signal has asked it to stop."""


def run(
    command: Sequence[str],
    folder: Path,
    group: str,
    lock: TextIO,
    is_hopeless: Callable[[], bool],
) -> Ended:
    """Run a trial to its end, or until a signal comes or it is hopeless.

    It has a session of its own, so that Ctrl-C reaches only the sweep, which asks it to save and
    end; and it holds the lock, also when the sweep is killed.
    """
    waiting, since, told = PendingSignals(), time.monotonic(), False
    with handle_signals(waiting.handlers()), (folder / LOG).open("ab") as log:
        process = start(command, log, group, lock)
        waiting.kill = partial(os.killpg, process.pid, signal.SIGKILL)
        try:
            while not has_ended(process):
                exit_code, save = waiting.take()
                if save:
                    process.send_signal(SAVE)
                if not told and (exit_code or is_hopeless()):
                    process.terminate()
                    told = True
        finally:
            # An error of ours is no reason to lose what it has learnt.
            if process.poll() is None:
                process.terminate()
                process.wait()
    return Ended(process.returncode, time.monotonic() - since, waiting.exit_code)


def start(command: Sequence[str], log: object, group: str, lock: TextIO) -> subprocess.Popen:
    """Begin a trial; the lock says by which process it is held."""
    environment = {"WANDB_MODE": "offline", **os.environ, "WANDB_RUN_GROUP": group}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
        pass_fds=[lock.fileno()],
    )
    sign(lock, process.pid)
    return process


def has_ended(process: subprocess.Popen) -> bool:
    """Whether it is over, or within a moment."""
    try:
        process.wait(POLL)
    except subprocess.TimeoutExpired:
        return False
    return True


def from_outside(code: int) -> int:
    """The exit code of a process that a signal has asked to stop, or 0."""
    return EXIT.get(-code, 0) or (code if code in EXIT.values() else 0)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let no second sweep into the folder.

    Raises:
        ValueError: one is there.
    """
    with (folder / "sweep.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"out: {folder} is process {signed(lock)}'s, which sweeps there"
            raise ValueError(f"{message}; it must be another folder") from error
        sign(lock, os.getpid())
        yield


@contextmanager
def no_trial(folder: Path) -> Iterator[TextIO]:
    """Wait for a process that a killed sweep has left; the lock that the next ones are to hold."""
    with (folder / "trial.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for process {signed(lock)}, a trial that goes on", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def sign(lock: TextIO, pid: int) -> None:
    """Write who holds it."""
    lock.seek(0)
    lock.truncate()
    lock.write(f"{pid}\n")
    lock.flush()


def signed(lock: TextIO) -> str:
    """Who holds it."""
    lock.seek(0)
    return lock.read().strip()
