"""Signal handling: exit at once, or after a training step."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

# Exit codes of the signals that stop a process.
EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
SAVE = signal.SIGUSR1  # signal that requests a checkpoint
# Seconds in which a second stop signal is ignored: launchers forward signals already received.
PATIENCE = 2.0
Handler = Callable[[int, Any], None]


def exit_on_signals() -> AbstractContextManager[None]:
    """Exit on stop signals, with cleanup; outside training there is nothing to save."""
    return handle_signals(dict.fromkeys(EXIT, exit_process) | {SAVE: EarlyRequest()})


class EarlyRequest:
    """The handler of a request to save that may come before training, which then asks for it."""

    def __init__(self) -> None:
        self.is_asked = False

    def __call__(self, *_: Any) -> None:
        self.is_asked = True
        print_message("SIGUSR1: nothing to save yet; training saves after its first step")


def exit_process(signum: int, _: Any) -> None:
    # An exception, so that context managers clean up.
    raise SystemExit(EXIT[signum])


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer a stop signal until the end of the block; exit at once on a second one."""
    deferred: list[int] = []

    def defer(signum: int, frame: Any) -> None:
        if deferred:
            exit_process(signum, frame)
        deferred.append(signum)

    with handle_signals(dict.fromkeys(EXIT, defer)):
        yield
    if deferred:
        exit_process(deferred[0], None)


class PendingSignals:
    """Records signals, for queries between two steps."""

    def __init__(self) -> None:
        self.exit_code = 0
        self.save = 0
        self.since = 0.0
        # Ends the processes started by this one.
        self.kill: Callable[[], None] = lambda: None

    def handlers(self) -> dict[int, Handler]:
        return dict.fromkeys(EXIT, self.note_stop) | {SAVE: self.note_save}

    def note_stop(self, signum: int, _: Any) -> None:
        name = signal.Signals(signum).name
        if not self.exit_code:
            self.since = time.monotonic()
            self.exit_code = EXIT[signum]
            later = f"another signal after {PATIENCE:g} seconds stops at once"
            print_message(f"{name}: this step is finished and saved; {later}")
        elif time.monotonic() - self.since > PATIENCE:
            print_message(f"{name} again: stopped at once; the last checkpoint is as it was")
            self.kill()
            os._exit(EXIT[signum])

    def take_early_request(self) -> None:
        """Note a request to save that came before these handlers were installed."""
        early = signal.getsignal(SAVE)
        if isinstance(early, EarlyRequest) and early.is_asked:
            early.is_asked = False
            self.save = 1

    def note_save(self, *_: Any) -> None:
        self.save = 1

    def expect_stop(self) -> None:
        """Note, as if it had come, the signal that follows a request to stop this process."""
        self.since = time.monotonic()
        self.exit_code = EXIT[signal.SIGTERM]

    def take(self) -> tuple[int, int]:
        """Return the exit code of a stop signal, or 0, and 1 once after a request to save."""
        save = self.save
        self.save = 0
        return self.exit_code, save


@contextmanager
def handle_signals(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Install signal handlers within the block; an ignored SIGHUP (nohup) stays ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    previous = {
        signum: signal.signal(signum, handler)
        # Python can handle signals only in the main thread.
        for signum, handler in (handlers if is_main else {}).items()
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler or signal.SIG_DFL)


def is_child() -> bool:
    """Return True if Lightning started this process for another rank."""
    has_launcher = any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "SLURM_PROCID"))
    return not has_launcher and os.environ.get("LOCAL_RANK", "0") != "0"


def print_message(text: str) -> None:
    # print fails in a handler that interrupts a print. The terminal may be gone.
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
