"""sweep: run a W&B sweep file with Optuna, on one machine and without an account."""

import os
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command_line import PROGRAM
from ..errors import require, require_positive
from ..files import check_folder_writable, find_config
from ..runs.folder import list_versions
from ..tables import align_columns
from ..terminal import show_progress

if TYPE_CHECKING:
    from ..sweeps.trials import Sweep


SEED = "seed_everything"
COLUMNS = ("trial", "state", "value", "validations", "seconds", "reason")
"""Those of a trial that are no parameters."""


def sweep_command(
    path: str, count: int | None = None, out: str | None = None, seed: int = 1, jobs: int = 1
) -> None:
    """Run the trials of a sweep file; rerun the command to continue a sweep.

    Optuna proposes and prunes trials. A failed trial is recorded, and the sweep continues. Writes
    results.csv, results.json, and for each trial a folder with its log and its run.

    Args:
        path: A sweep in W&B's format, or the name of an included one.
        count: Trials in total, including earlier and failed ones; left out, the file's run_cap, or
            all of its grid.
        out: Folder to write to; left out, runs/sweeps and the name of the file.
        seed: Seed of the proposals; they also depend on the results of the trials.
        jobs: Trials that run at once on this machine; each sees its share of the GPUs.
    """
    require_positive(count=count, jobs=jobs)
    require(0 <= seed < 2**32, "seed", seed, "at least 0 and less than 2^32")
    if find_spec("optuna") is None:
        raise ValueError("sweep: optuna is not installed; pip install '.[sweeps]' in the clone")
    from ..sweeps.search import count_points, load_sweep_file
    from ..sweeps.trials import Sweep

    file = find_config(path)
    expected = "a sweep file, or a name in sweeps/ that `txl-lightning configs` lists"
    require(os.path.lexists(file), "path", path, expected)
    config = load_sweep_file(file)
    limits = [n for n in (count or config.get("run_cap"), count_points(config)) if n]
    expected = f"a number of trials, as {config['method']} has no end"
    require(bool(limits), "count", count, expected)
    folder = Path(out or Path("runs", "sweeps", Path(path).stem))
    check_folder_writable("out", folder)
    sweep = Sweep(config, folder, seed)
    with show_progress("trials", min(limits), in_bytes=False) as advance:
        sweep.run(min(limits), jobs, advance)
    print_results(sweep)


def print_results(sweep: "Sweep") -> None:
    rows = sweep.make_rows()
    keys = [key for key in rows[0] if key != "reason"]
    lines = [[key.rsplit(".", 1)[-1] for key in keys]]
    for row in rows:
        cells = ("-" if row[key] is None else row[key] for key in keys)
        lines.append([f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells])
    print(f"\n{sweep.metric}, best first")
    print(align_columns([[*line, ""] for line in lines]))
    if rows[0]["state"] not in ("complete", "pruned"):
        raise ValueError(f"no trial has a value; the last: {rows[-1]['reason']}")
    print(f"\nwritten to {sweep.folder}; evaluate the best, and compare the trials, with")
    best = sweep.folder / f"{rows[0]['trial']:03}"
    for run in list_versions(best)[:1]:
        print(f"  {PROGRAM} evaluate {shlex.quote(str(run))} --split val")
    print(f"  {PROGRAM} compare {shlex.quote(str(sweep.folder))}{find_groups(rows)}")


def find_groups(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the option by which compare groups the seeds of trials.

    It is "" if trials vary no seed, or nothing else, or configs, which are no setting of a run.
    """
    varied = [key for key in rows[0] if len({str(row[key]) for row in rows}) > 1]
    others = [key for key in varied if key not in (*COLUMNS, SEED)]
    is_grouped = SEED in varied and others and "config" not in others
    return f" --by {shlex.quote(','.join(others))}" if is_grouped else ""
