"""Agreements of a process with the system: how it ends after a signal, and how its threads wait for
a core. Nothing here imports torch."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

# Exit codes of the signals that stop a process.
EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
SAVE = signal.SIGUSR1  # signal that requests a checkpoint
# Seconds in which a second stop signal is ignored: launchers forward signals already received.
PATIENCE = 2.0
Handler = Callable[[int, Any], None]

SPIN_COUNT = 2000
"""Turns that a thread of libgomp waits on its core before it sleeps; libgomp's default is far more,
and a thread that waits for one without a core burns its own."""
IDLE = ("GOMP_SPINCOUNT", str(SPIN_COUNT))
BUSY = ("OMP_WAIT_POLICY", "passive")
"""Where other work has a core when a process begins: threads sleep at once. On an idle machine that
costs a fifth of the speed, beside one busy process it saves a half."""
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
"""Variables of how threads wait: libgomp's, every runtime's, and that of Intel and LLVM (macOS)."""
LOAD = Path("/proc/loadavg")
N_LOOK = 5  # looks at the running threads
PAUSE = 0.01  # seconds between them
set_here: dict[str, str] = {}
"""Variables that this process has added to the environment."""


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


def limit_spinning() -> None:
    """Let waiting threads sleep early, unless the environment says how they wait.

    The runtime reads the variable once, when torch is loaded; processes started later inherit it.
    """
    if "torch" in sys.modules or any(name in os.environ for name in VARIABLES):
        return
    name, value = BUSY if is_machine_busy() else IDLE
    set_here[name] = os.environ[name] = value


def is_machine_busy() -> bool:
    """Return True if other processes run where our threads would."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    has_affinity = hasattr(os, "sched_getaffinity")
    n_cpu = os.cpu_count() or 1
    n_thread = len(os.sched_getaffinity(0)) if has_affinity else n_cpu
    n_thread = int(wanted) if wanted.isdecimal() else n_thread
    return count_other_threads() + n_thread > n_cpu


def count_other_threads() -> float:
    """Return how many other threads of the machine run now; 0 where the system does not say."""
    counts = []
    for _ in range(N_LOOK):
        with suppress(OSError, ValueError, IndexError):
            # "0.20 0.18 0.12 3/110 4321": 3 of 110 threads run, of which this is one.
            counts.append(int(LOAD.read_text().split()[3].partition("/")[0]) - 1)
        time.sleep(PAUSE)
    return median(counts) if counts else 0


def describe_waiting() -> str:
    """Return what says how threads wait, and who said it."""
    found = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    if not found:
        return "the runtime's default: torch was loaded before this command"
    return f"{' '.join(found)}, {'set by this command' if set_here else 'from the environment'}"
