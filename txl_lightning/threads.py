"""How OpenMP's threads wait for each other; nothing here imports torch."""

import os
import sys

SPIN_COUNT = 2000
"""Turns that a thread of libgomp waits on its core before it sleeps; libgomp's default is far more,
and a thread that waits for one without a core burns its own."""
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
"""What says how threads wait: libgomp's, every runtime's, and that of Intel and LLVM (macOS)."""
set_here: dict[str, str] = {}
"""What this process has added to the environment."""


def limit_spinning() -> None:
    """Let waiting threads sleep early, unless the environment says how they wait.

    The runtime reads the variable once, when torch is loaded; processes started later inherit it.
    """
    if "torch" in sys.modules or any(name in os.environ for name in VARIABLES):
        return
    set_here["GOMP_SPINCOUNT"] = os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def describe_waiting() -> str:
    """Return what says how threads wait, and who said it."""
    found = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    if not found:
        return "the runtime's default: torch was loaded before this command"
    return f"{' '.join(found)}, {'set by this command' if set_here else 'from the environment'}"
