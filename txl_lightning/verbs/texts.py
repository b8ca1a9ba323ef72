"""The text that a checkpoint is measured on."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..checkpoints import load_run, read_checkpoint
from ..data import DataError
from ..data.own import read
from ..data.spans import SPLITS
from ..data.store import Store
from ..data.text import TextConfig
from ..data.vocab import Vocabulary, fingerprint
from ..model import TransformerXL


def trained(ckpt_path: str) -> tuple[TransformerXL, Vocabulary, dict[str, Any]]:
    """The network, the vocabulary, and what the checkpoint knows of its text and its reading."""
    checkpoint = read_checkpoint(ckpt_path)
    return *load_run(ckpt_path), checkpoint["datamodule_hyper_parameters"]["data"]


def text_ids(ckpt_path: str, vocab: Vocabulary, path: str | None, split: str) -> np.ndarray:
    """The ids of a file, or else of a split of the text that the checkpoint's run was trained on.

    Documents stand one after the other, also where training kept them apart.

    Raises:
        ValueError: no such split, or no text can be found.
        DataError: the text cannot be had, read or encoded.
    """
    if path is not None:
        spans = read(Path(path).expanduser(), TextConfig().data_root)
        return np.concatenate([ids for span in spans for ids in vocab.encode(span)])
    if split not in SPLITS:
        raise ValueError(f"split: {split} is not possible; it must be one of {', '.join(SPLITS)}")
    store = run_text(ckpt_path).open()
    if not isinstance(store, Store):
        raise ValueError(f"path: null is not possible; {ckpt_path} was trained on a task, not text")
    if fingerprint(store.vocab) != fingerprint(vocab):
        raise DataError(f"{ckpt_path}: its run's text has another vocabulary now; give one as path")
    return store.ids(split)


def run_text(ckpt_path: str) -> TextConfig:
    """The text's settings in the config of the checkpoint's run."""
    config = Path(ckpt_path).absolute().parents[1] / "config.yaml"
    if not config.is_file():
        raise ValueError(f"path: null is not possible; it must be a text, as there is no {config}")
    settings = yaml.safe_load(config.read_text())["data"]
    names = [field.name for field in fields(TextConfig)]
    return TextConfig(**{name: settings[name] for name in names if name in settings})
