"""The checkpoints of our own runs, the folders that convert wrote, and the text of a run."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from ..data.config import DataConfig
from ..data.store import Store
from ..data.tasks import TaskStore
from ..data.vocab import Vocabulary, load_vocabulary
from ..errors import CheckpointError, DataError
from ..files import sha256_file
from ..model import TransformerXL, TransformerXLConfig
from .export import WEIGHTS, load_folder, read_config
from .files import load_checkpoint

FOREIGN = "ckpt_path: {} is not a checkpoint written by fit"
OTHERWISE = "give a text with --path"


def load_run(path: str | Path) -> tuple[TransformerXL, Vocabulary | None]:
    """Load the network, in eval mode, and the vocabulary of what fit or convert wrote.

    Only a folder of convert's may have no vocabulary; errors are those of `read_checkpoint`.
    """
    if Path(path).is_dir():
        return load_folder(Path(path))
    checkpoint = read_checkpoint(path)
    try:
        model = TransformerXL(TransformerXLConfig(**checkpoint["hyper_parameters"]["net"]))
        weights = checkpoint["state_dict"]
        model.load_state_dict({name.removeprefix("net."): weights[name] for name in weights})
        return model.eval(), load_vocabulary(checkpoint["CorpusDataModule"]["vocab"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(FOREIGN.format(path)) from error


def load_with_vocabulary(path: str | Path) -> tuple[TransformerXL, Vocabulary]:
    """Load the same as `load_run`; without a vocabulary there is a CheckpointError."""
    model, known = load_run(path)
    if known is None:
        raise CheckpointError(f"ckpt_path: {path} has no vocabulary; convert with --vocab")
    return model, known


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint of fit, or the settings of a folder of convert's.

    Raises:
        ValueError: there is no such file.
        CheckpointError: it is not such a checkpoint, or it is damaged.
    """
    path = Path(path)
    if path.is_dir():
        return {"hyper_parameters": {"net": read_config(path).to_dict()}}
    if not path.is_file():
        beside = ", ".join(sorted(found.name for found in path.parent.glob("*.ckpt")))
        there = f" (there is {beside})" if beside else ""
        allowed = "expected a checkpoint written by fit, or a folder written by convert"
        raise ValueError(f"ckpt_path: {path}: no such file{there}; {allowed}")
    checkpoint = load_checkpoint(path)
    try:
        TransformerXLConfig(**checkpoint["hyper_parameters"]["net"])
    except (LookupError, TypeError) as error:
        raise CheckpointError(FOREIGN.format(path)) from error
    return checkpoint


def sha256_of_weights(ckpt_path: str | Path) -> str:
    """Return the sha256 of the file with the weights."""
    path = Path(ckpt_path)
    return sha256_file(path / WEIGHTS if path.is_dir() else path)


def read_tgt_len(path: str | Path) -> int | None:
    """Return how long segments were in training; None where a checkpoint does not say."""
    data = read_checkpoint(path).get("datamodule_hyper_parameters", {}).get("data", {})
    return data.get("tgt_len")


def load_training_text(
    ckpt_path: str | Path, data_dir: str | None = None
) -> tuple[str, Store | TaskStore]:
    """Return the name of a run's text and its store, as RUN/config.yaml says.

    Args:
        ckpt_path: RUN/checkpoints/NAME.ckpt.
        data_dir: where data lives; left out, where the run had it.

    Raises:
        DataError: nothing says which text it was, or it is another one by now.
    """
    state = read_checkpoint(ckpt_path).get("CorpusDataModule")
    path = Path(ckpt_path).absolute().parents[1] / "config.yaml"
    if state is None or not path.is_file():
        missing = f"no {path} says what it was trained on"
        raise DataError(f"ckpt_path: {ckpt_path}: {missing}; {OTHERWISE}")
    data = yaml.safe_load(path.read_text(encoding="utf-8")).get("data") or {}
    names = data.keys() & {field.name for field in fields(DataConfig)}
    config = DataConfig(**{name: data[name] for name in names})
    store = (replace(config, data_dir=data_dir) if data_dir else config).open()
    if store.fingerprint != state["fingerprint"]:
        changed = f"the checkpoint's is {state['fingerprint']}, this text's {store.fingerprint}"
        raise DataError(f"data ({config.name}): {changed}; {OTHERWISE}")
    return config.name, store
