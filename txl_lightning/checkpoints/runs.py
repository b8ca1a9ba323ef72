"""The checkpoints of our own runs, and the folders that convert wrote."""

from pathlib import Path
from typing import Any

from ..data import vocab
from ..errors import CheckpointError
from ..files import sha256_file
from ..model import TransformerXL, TransformerXLConfig
from .export import WEIGHTS, load_folder, read_config
from .files import read


def load_run(path: str | Path) -> tuple[TransformerXL, vocab.Vocabulary | None]:
    """The network, in eval mode, and the vocabulary of what fit or convert wrote.

    Only a folder of convert's may have no vocabulary.

    Raises:
        ValueError: there is no such file.
        CheckpointError: it is not such a checkpoint, or it is damaged.
    """
    if Path(path).is_dir():
        return load_folder(Path(path))
    checkpoint = read_checkpoint(path)
    try:
        model = TransformerXL(TransformerXLConfig(**checkpoint["hyper_parameters"]["net"]))
        weights = checkpoint["state_dict"]
        model.load_state_dict({name.removeprefix("net."): weights[name] for name in weights})
        return model.eval(), vocab.load_vocabulary(checkpoint["CorpusDataModule"]["vocab"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise not_ours(path) from error


def load_with_vocabulary(path: str | Path) -> tuple[TransformerXL, vocab.Vocabulary]:
    """As `load_run`, and there is a vocabulary.

    Raises:
        CheckpointError: there is none.
    """
    model, known = load_run(path)
    if known is None:
        raise CheckpointError(f"ckpt_path: {path} has no vocabulary; convert with --vocab")
    return model, known


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What a checkpoint of fit holds, or a folder of convert's says; nothing in it is executed.

    Raises:
        ValueError: there is no such file.
        CheckpointError: it is not such a checkpoint, or it is damaged.
    """
    if Path(path).is_dir():
        return {"hyper_parameters": {"net": read_config(Path(path)).plain()}}
    if not Path(path).is_file():
        beside = ", ".join(sorted(found.name for found in Path(path).parent.glob("*.ckpt")))
        there = f" (there is {beside})" if beside else ""
        allowed = "it must be a checkpoint written by fit, or a folder written by convert"
        raise ValueError(f"ckpt_path: {path}: no such file{there}; {allowed}")
    checkpoint = read(Path(path))
    try:
        TransformerXLConfig(**checkpoint["hyper_parameters"]["net"])
    except (LookupError, TypeError) as error:
        raise not_ours(path) from error
    return checkpoint


def sha256_of_weights(ckpt_path: str | Path) -> str:
    """The sha256 of the file with the weights."""
    path = Path(ckpt_path)
    return sha256_file(path / WEIGHTS if path.is_dir() else path)


def read_tgt_len(path: str | Path) -> int | None:
    """Tokens in a segment of the training; None where a checkpoint does not say."""
    data = read_checkpoint(path).get("datamodule_hyper_parameters", {}).get("data", {})
    return data.get("tgt_len")


def not_ours(path: str | Path) -> CheckpointError:
    """What is said of a file that is something else."""
    return CheckpointError(f"ckpt_path: {path} is not a checkpoint written by fit")
