"""compare: settings and results of several runs as a table, and their validations as a picture."""

import os
from itertools import chain
from pathlib import Path

from ..analysis.plots import draw_validations, open_figure
from ..errors import require
from ..files import check_file_writable
from ..runs.listing import find_runs, load_runs, shorten_paths
from ..runs.metrics_table import collect_by_key, find_differences
from ..tables import align_columns

PICTURES = (".png", ".svg", ".pdf")


def compare_command(
    runs: tuple[str, ...], out: str | None = None, by: str | None = None, margin: float = 0.01
) -> None:
    """Print the settings in which runs differ, and their results; draw their validation loss.

    Args:
        runs: Folders of runs, or folders with several runs, as of a sweep.
        out: Picture to write (.png, .svg or .pdf); left out, compare.png in the folder that
            contains all the runs.
        by: Setting by which runs are grouped and compared on the test text, paired by seed. A key
            is also all settings below it: model.net is the whole network. Several have commas. Of
            other settings that differ in a group, the best are chosen by validation.
        margin: With by, an effect of at most this is none, in the unit of the result.
    """
    require(margin >= 0, "margin", margin, "0 or more")
    folders: dict[Path, Path] = {}
    for folder in chain(*(find_runs(path, "runs") for path in runs)):
        folders.setdefault(folder.resolve(), folder)
    found = load_runs([*folders.values()])
    if by is not None:
        require(out is None, "out", out, "null with by, which prints a table")
        # Only this reads texts, with torch.
        from .compare_groups import compare_groups

        compare_groups(found, by, margin)
        return
    require(margin == 0.01, "margin", margin, "left out without by")
    places = [run.folder.absolute() for run in found]
    path = Path(out or Path(os.path.commonpath(places)) / "compare.png")
    require(
        path.suffix.lower() in PICTURES, "out", path, f"a file that ends with {', '.join(PICTURES)}"
    )
    check_file_writable("out", path)
    loaded = dict(zip(shorten_paths(places), found, strict=True))
    settings = find_differences([run.settings for run in loaded.values()])
    results = collect_by_key([run.facts for run in loaded.values()])
    rows = [
        [key, *(cell or "-" for cell in cells), ""] for key, cells in (settings | results).items()
    ]
    print(align_columns([["", *loaded, ""], *rows]))
    with open_figure(path) as (axes,):
        draw_validations(axes, {name: run.metrics for name, run in loaded.items()})
    print(f"written to {path}")
