"""sweep: many runs of one file of W&B's, on one machine and with no account."""

from pathlib import Path

from ..errors import require
from ..files import check_folder_writable
from ..sweeps.file import SweepFile, read
from ..sweeps.loop import carry_out
from ..sweeps.results import show


def sweep_command(
    path: str, count: int | None = None, out: str | None = None, seed: int = 1
) -> None:
    """Make the trials of a sweep one after the other; broken off, the same command goes on.

    What to try, and what to end early, is W&B's own engine's to say. A trial that fails is noted,
    and the sweep goes on. Written as results.csv, results.json, results.png, and a folder for each
    trial with its log and its runs.

    Args:
        path: A sweep in W&B's format, as in configs/sweeps.
        count: Trials to make in all, those of earlier calls and those that failed included; left
            out, the file's run_cap, or as many as its grid has.
        out: The folder to write to; left out, one of the file's name in runs/sweeps.
        seed: The same seed tries the same, if the trials have the same results.
    """
    require(count is None or count >= 1, "count", count, "at least 1")
    require(0 <= seed < 2**32, "seed", seed, "at least 0 and less than 2^32")
    file = read(path)
    limit = limited(file, count)
    folder = Path(out or Path("runs", "sweeps", Path(path).stem))
    check_folder_writable("out", folder)
    show(carry_out(file, folder, seed, limit), file, folder)


def limited(file: SweepFile, count: int | None) -> int | None:
    """How many trials to make; None for a whole grid.

    Raises:
        ValueError: there would be no end.
    """
    limit = count or file.config.get("run_cap")
    method = file.config["method"]
    if limit is None and method != "grid":
        allowed = f"how many trials to make, as method {method} has no end (or run_cap in the file)"
        raise ValueError(f"count: missing; it must be {allowed}")
    return limit
