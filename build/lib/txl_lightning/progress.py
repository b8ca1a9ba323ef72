"""A progress bar on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from .errors import show_controls

Advance = Callable[[int], object]  # called with the amount done since the last call


@contextmanager
def show_progress(task: str, total: int | None, in_bytes: bool = True) -> Iterator[Advance]:
    """Show a progress bar of `total` bytes or parts; yield the function that advances it."""
    # rich is slow to import, and a prepared text needs no bar.
    from rich import progress
    from rich.console import Console

    amount = progress.DownloadColumn() if in_bytes else progress.MofNCompleteColumn()
    name = progress.TextColumn("{task.description}", markup=False)
    columns = name, progress.BarColumn(24), amount, progress.TimeRemainingColumn()
    # Print stdout above the bar, unless stdout is a file: rich.progress.track would not ask.
    is_terminal = bool(sys.stdout and sys.stdout.isatty())
    options = {"console": Console(stderr=True), "disable": not sys.stderr.isatty()}
    with progress.Progress(*columns, **options, redirect_stdout=is_terminal) as bar:
        yield partial(bar.advance, bar.add_task(show_controls(task), total=total))
