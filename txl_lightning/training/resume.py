"""Where training goes on from."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightning.pytorch.utilities import rank_zero_only

from ..checkpoints import CheckpointError
from ..checkpoints.search import newest, sweep

Resume = Literal["auto", "must", "never"]


@dataclass(frozen=True)
class SavingConfig:
    """When last.ckpt is written, beside after each validation and at the end."""

    every_n_steps: int | None = None
    """Steps between two of them."""

    def __post_init__(self) -> None:
        if self.every_n_steps is not None and self.every_n_steps < 1:
            raise ValueError(
                f"every_n_steps: {self.every_n_steps} is not possible; it must be at least 1"
            )


def starting_point(resume: Resume, ckpt_path: str | None, root: Path) -> Path | None:
    """The checkpoint to start from, or None for a start from nothing.

    Args:
        resume: auto, must or never.
        ckpt_path: a file, or "last": what resume would find.
        root: the default_root_dir of the runs to look at.

    Raises:
        ValueError: both say where to start.
        CheckpointError: there is nothing to resume, and there must be.
    """
    if ckpt_path not in (None, "last"):
        if resume != "never":
            raise ValueError(
                f"resume: {resume} is not possible with ckpt_path {ckpt_path}; leave one out"
            )
        return Path(ckpt_path)
    if resume == "never" and ckpt_path is None:
        return None
    if rank_zero_only.rank == 0:
        sweep(root)
    found, complaints = newest(root)
    for complaint in complaints:
        note(f"warning: {complaint}; passed over")
    if found is None and (resume == "must" or ckpt_path == "last"):
        setting = "resume: must" if resume == "must" else "ckpt_path: last"
        raise CheckpointError(f"{setting}: there is no whole checkpoint of a run under {root}")
    note(f"resume: {found or f'nothing under {root}; training starts from the beginning'}")
    return found


@rank_zero_only
def note(line: str) -> None:
    """Say it once."""
    print(line, file=sys.stderr)
