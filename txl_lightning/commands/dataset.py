"""The text that a checkpoint is measured on, as ids."""

from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import read_checkpoint
from ..checkpoints.runs import load_training_text, load_with_vocabulary
from ..data.config import DataConfig
from ..data.documents import SPLITS
from ..data.store import Store
from ..data.user_files import find_slices
from ..data.vocab import Vocabulary
from ..errors import require
from ..model import TransformerXL


def load_trained(ckpt_path: str) -> tuple[TransformerXL, Vocabulary, dict[str, Any]]:
    """Load the network in eval mode, its vocabulary, and the data settings of its training."""
    checkpoint = read_checkpoint(ckpt_path)
    return *load_with_vocabulary(ckpt_path), checkpoint["datamodule_hyper_parameters"]["data"]


def read_ids(ckpt_path: str, vocab: Vocabulary, path: str | None, split: str) -> np.ndarray:
    """Return the ids of a file, or else of a split of the text that the checkpoint was trained on.

    Documents are concatenated, even if training kept them apart.

    Raises:
        ValueError: there is no such split, or the run was trained on a task.
        DataError: the text cannot be read or encoded, or has changed.
    """
    if path is not None:
        spans = find_slices(Path(path).expanduser(), DataConfig().data_folder)
        return np.concatenate([ids for span in spans for ids in vocab.encode(span)])
    require(split in SPLITS, "split", split, f"one of {', '.join(SPLITS)}")
    _, store = load_training_text(ckpt_path)
    if not isinstance(store, Store):
        raise ValueError(f"path: invalid null; {ckpt_path} was trained on a task, not text")
    return store.ids(split)
