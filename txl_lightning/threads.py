"""How OpenMP's threads wait for each other; nothing here imports torch."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

SPIN_COUNT = 2000
"""Turns that a thread of libgomp waits on its core before it sleeps; libgomp's default is far more,
and a thread that waits for one without a core burns its own."""
IDLE = ("GOMP_SPINCOUNT", str(SPIN_COUNT))
BUSY = ("OMP_WAIT_POLICY", "passive")
"""Where other work has a core when a process begins: threads sleep at once. On an idle machine that
costs a fifth of the speed, beside one busy process it saves a half."""
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
"""What says how threads wait: libgomp's, every runtime's, and that of Intel and LLVM (macOS)."""
LOAD = Path("/proc/loadavg")
N_LOOK = 5  # looks at the running threads
PAUSE = 0.01  # seconds between them
set_here: dict[str, str] = {}
"""What this process has added to the environment."""


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
