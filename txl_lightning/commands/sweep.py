"""sweep: many runs of one file of W&B's, on one machine and without an account."""

from importlib.util import find_spec
from pathlib import Path

from ..data.documents import show_progress
from ..errors import require
from ..files import check_folder_writable, find_config


def sweep_command(
    path: str, count: int | None = None, out: str | None = None, seed: int = 1
) -> None:
    """Run the trials of a sweep one after the other; interrupted, the same command continues.

    Optuna proposes the trials and prunes them. Several of these commands on one machine share a
    folder's sweep. A trial that fails is noted, and the sweep continues. Written are results.csv,
    results.json, curves.png, results.png, importances.png, and a folder for each trial with its log
    and its run.

    Args:
        path: A sweep in W&B's format, or the name of a given one.
        count: Trials in all, with those of earlier calls and those that failed; left out, the
            file's run_cap, or as many as its grid has.
        out: The folder to write to; left out, one of the file's name in runs/sweeps.
        seed: The same seed proposes the same, if the trials have the same results.
    """
    require(count is None or count >= 1, "count", count, "at least 1")
    require(0 <= seed < 2**32, "seed", seed, "at least 0 and less than 2^32")
    if find_spec("optuna") is None:
        raise ValueError("sweep: optuna is not installed; pip install 'txl-lightning[sweeps]'")
    from ..sweeps import engine, results, runner

    config = engine.load_sweep_file(find_config(path))
    limit, method = count or config.get("run_cap"), config["method"]
    is_finite = limit is not None or method == "grid"
    require(is_finite, "count", limit, f"a number of trials, as {method} has no end")
    folder = Path(out or Path("runs", "sweeps", Path(path).stem))
    check_folder_writable("out", folder)
    sweep = engine.open_sweep(config, folder, seed)
    with show_progress("trials", limit, in_bytes=False) as advance:
        runner.run_trials(sweep, limit, advance)
    results.draw_figures(sweep)
    results.print_results(sweep)
