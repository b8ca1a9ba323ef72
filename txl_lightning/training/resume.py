"""Start of training: from nothing, a checkpoint, or the weights that convert wrote."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightning.pytorch.utilities import rank_zero_only

from ..checkpoints import load_folder
from ..checkpoints.files import find_latest, remove_partial_files
from ..checkpoints.runs import VOCAB
from ..data.datamodule import CorpusDataModule
from ..errors import CheckpointError, DataError, require
from .module import LanguageModel

Resume = Literal["auto", "must", "never"]


@dataclass(frozen=True)
class CheckpointConfig:
    """Occasions on which last.ckpt is written, besides each validation and the end."""

    every_n_steps: int | None = None
    """Steps between two of them."""

    def __post_init__(self) -> None:
        every = self.every_n_steps
        require(every is None or every >= 1, "every_n_steps", every, "at least 1")


def find_start(resume: Resume, ckpt_path: str | None, root: Path) -> Path | None:
    """Return the checkpoint to start from; None is a start from nothing.

    Args:
        resume: auto, must or never.
        ckpt_path: a file, a folder of convert's, or "last": the one that resume would find.
        root: the folder of runs.
    """
    if ckpt_path not in (None, "last"):
        expected = "never with ckpt_path: one of them says where to start"
        require(resume == "never", "resume", resume, expected)
        return Path(ckpt_path)
    if resume == "never" and ckpt_path is None:
        return None
    if rank_zero_only.rank == 0:
        remove_partial_files(root)
    path, complaints = find_latest(root)
    for complaint in complaints:
        print_once(f"warning: {complaint}; passed over")
    if path is None and (resume == "must" or ckpt_path == "last"):
        setting = "resume: must" if resume == "must" else "ckpt_path: last"
        raise CheckpointError(f"{setting}: there is no whole checkpoint of a run under {root}")
    print_once(f"resume: {path or f'nothing under {root}; training starts from the beginning'}")
    return path


def vocabulary_setting(start: Path) -> dict[str, str]:
    """Return the setting that reads text with the vocabulary of a folder, if it has one."""
    vocab = start / VOCAB
    return {"data.vocab": str(vocab)} if vocab.is_file() else {}


def load_weights(folder: Path, model: LanguageModel, data: CorpusDataModule) -> None:
    """Load a folder's weights, whatever text they learned from, if its ids mean the same.

    Raises:
        CheckpointError: it is damaged.
        DataError: the text has another vocabulary.
    """
    net, vocab = load_folder(folder)
    if vocab is not None:
        data.load_state_dict({"vocab": vocab.to_json()})
    elif net.config.n_token != data.n_token:
        sizes = f"{data.n_token} tokens are not the {net.config.n_token} of {folder}"
        raise DataError(f"data.vocab: {sizes}; give the vocabulary that it was trained with")
    model.net.load_state_dict(net.state_dict())


@rank_zero_only
def print_once(line: str) -> None:
    """Print a line on stderr, on rank 0."""
    print(line, file=sys.stderr)
