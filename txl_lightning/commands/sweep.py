"""sweep: run a W&B sweep file with Optuna, on one machine and without an account."""

import os
from importlib.util import find_spec
from pathlib import Path

from ..errors import require, require_positive
from ..files import check_folder_writable, find_config
from ..progress import show_progress


def sweep_command(
    path: str,
    count: int | None = None,
    out: str | None = None,
    seed: int = 1,
    storage: str | None = None,
) -> None:
    """Run the trials of a sweep file one after the other; rerun the command to continue a sweep.

    Optuna proposes and prunes trials. Several of these commands on one machine may share a sweep's
    folder. A failed trial is recorded, and the sweep continues. Writes results.csv, results.json,
    curves.png, results.png, importances.png, and for each trial a folder with its log and its run.

    Args:
        path: A sweep in W&B's format, or the name of an included one.
        count: Trials in total, including earlier and failed ones; left out, the file's run_cap, or
            all of its grid.
        out: Folder to write to; left out, runs/sweeps and the name of the file.
        seed: Seed of the proposals; they also depend on the results of the trials.
        storage: URL of a database, as Optuna takes it (postgresql://USER@HOST/NAME), for the trials
            of several machines with this option; left out, a journal in the folder.
    """
    require_positive(count=count)
    require(0 <= seed < 2**32, "seed", seed, "at least 0 and less than 2^32")
    if find_spec("optuna") is None:
        raise ValueError("sweep: optuna is not installed; pip install 'txl-lightning[sweeps]'")
    from ..sweeps import engine, runner, trial_results

    file = find_config(path)
    expected = "a sweep file, or a name in sweeps/ that `txl-lightning configs` lists"
    require(os.path.lexists(file), "path", path, expected)
    config = engine.load_sweep_file(file)
    limit, method = count or config.get("run_cap"), config["method"]
    is_finite = limit is not None or method == "grid"
    require(is_finite, "count", limit, f"a number of trials, as {method} has no end")
    folder = Path(out or Path("runs", "sweeps", Path(path).stem))
    check_folder_writable("out", folder)
    sweep = engine.open_sweep(config, folder, seed, storage)
    with show_progress("trials", limit, in_bytes=False) as advance:
        runner.run_trials(sweep, limit, advance)
    trial_results.draw_figures(sweep)
    trial_results.print_results(sweep)
