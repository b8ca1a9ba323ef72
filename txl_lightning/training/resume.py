"""Where training goes on from."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightning.pytorch.utilities import rank_zero_only

from ..checkpoints import load_folder
from ..checkpoints.export import VOCAB
from ..checkpoints.find_latest import find_latest, remove_partial_files
from ..data.datamodule import CorpusDataModule
from ..errors import CheckpointError, DataError
from .module import LanguageModel

Resume = Literal["auto", "must", "never"]


@dataclass(frozen=True)
class SavingConfig:
    """When last.ckpt is written, beside after each validation and at the end."""

    every_n_steps: int | None = None
    """Steps between two of them."""

    def __post_init__(self) -> None:
        if self.every_n_steps is not None and self.every_n_steps < 1:
            raise ValueError(f"every_n_steps: invalid {self.every_n_steps}; expected at least 1")


def starting_point(resume: Resume, ckpt_path: str | None, root: Path) -> Path | None:
    """The checkpoint to start from, or None for a start from nothing.

    Args:
        resume: auto, must or never.
        ckpt_path: a file, a folder of convert's, or "last": what resume would find.
        root: the default_root_dir of the runs to look at.

    Raises:
        ValueError: both say where to start.
        CheckpointError: there is nothing to resume, and there must be.
    """
    if ckpt_path not in (None, "last"):
        if resume != "never":
            raise ValueError(f"resume: invalid {resume} with ckpt_path {ckpt_path}; leave one out")
        return Path(ckpt_path)
    if resume == "never" and ckpt_path is None:
        return None
    if rank_zero_only.rank == 0:
        remove_partial_files(root)
    found, complaints = find_latest(root)
    for complaint in complaints:
        note(f"warning: {complaint}; passed over")
    if found is None and (resume == "must" or ckpt_path == "last"):
        setting = "resume: must" if resume == "must" else "ckpt_path: last"
        raise CheckpointError(f"{setting}: there is no whole checkpoint of a run under {root}")
    note(f"resume: {found or f'nothing under {root}; training starts from the beginning'}")
    return found


def vocabulary_in(start: Path) -> dict[str, str]:
    """The setting by which a text is read with the vocabulary of a folder, if it has one."""
    vocab = start / VOCAB
    return {"data.vocab": str(vocab)} if vocab.is_file() else {}


def begin_with(folder: Path, model: LanguageModel, data: CorpusDataModule) -> None:
    """Take a folder's weights, whatever text they learned from, if its ids mean the same.

    Raises:
        CheckpointError: it is damaged.
        DataError: the text has another vocabulary.
    """
    found, vocab = load_folder(folder)
    if vocab is not None:
        data.load_state_dict({"vocab": vocab.to_json()})
    elif found.config.n_token != data.n_token:
        sizes = f"{data.n_token} tokens are not the {found.config.n_token} of {folder}"
        raise DataError(f"data.vocab: {sizes}; give the vocabulary that it was trained with")
    model.net.load_state_dict(found.state_dict())


@rank_zero_only
def note(line: str) -> None:
    """Say it once."""
    print(line, file=sys.stderr)
