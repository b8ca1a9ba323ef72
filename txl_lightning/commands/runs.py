"""runs: list the runs in a folder."""

from datetime import datetime

from ..runs.listing import find_runs, find_write_time, load_runs
from ..tables import align_columns


def runs_command(root: str = "runs") -> None:
    """List the runs in a folder and all folders in it, the one written last at the end.

    Args:
        root: The folder.
    """
    lines = [["run", "last written", "state", "steps", "parameters", "best validation", "unit"]]
    for run in load_runs(find_runs(root, "root")):
        facts = run.facts
        best = next((name for name in facts if name.startswith("best validation")), "")
        cells = [facts.get(name) or "-" for name in ("state", "steps", "parameters", best)]
        date = datetime.fromtimestamp(find_write_time(run.folder)).strftime("%Y-%m-%d %H:%M")
        unit = best.removeprefix("best validation ").strip("()")
        lines.append([str(run.folder), date, *cells, unit])
    print(align_columns(lines))
