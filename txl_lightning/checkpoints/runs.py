"""Load networks with their vocabularies from runs and converted folders, and the texts of runs.

fit writes a run's folder with checkpoints; convert writes a folder with model.safetensors,
config.json and vocab.json.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.config import DataConfig
from ..data.documents import short_hash
from ..data.store import Store
from ..data.tasks import TaskStore
from ..data.vocab import Vocabulary, load_vocabulary
from ..errors import CheckpointError, DataError
from ..files import load_yaml, sha256_file, write_json, write_text
from ..model import TransformerXL, TransformerXLConfig
from .files import FOREIGN, FORMAT, KEY, LAST, load_checkpoint, manifest_path, warn_unverified
from .tensors import errors_in, load_content, load_json, refuse_damaged, save_tensors
from .vocabulary import load_vocabulary_in
from .weights import load_weights, map_own_weights, match_weights

CONFIG, WEIGHTS, VOCAB = "config.json", "model.safetensors", "vocab.json"
RUN_CONFIG = "config.yaml"
OTHERWISE = "give a text with --path"


def save_folder(model: TransformerXL, folder: Path, vocab: Vocabulary | None = None) -> None:
    """Write a network, and its vocabulary if there is one; shared weights are written once."""
    save_tensors(dict(model.named_parameters()), folder / WEIGHTS)
    if vocab is not None:
        write_text(vocab.to_json(), folder / VOCAB)
    # Written last, so that an interrupted export is not a valid folder.
    net, about = model.config.to_dict(), {"format": FORMAT}
    about |= {"weights_sha256": sha256_of_weights(folder), "rest": hash_rest(folder, net)}
    write_json({KEY: about, "net": net}, folder / CONFIG)


def load_folder(folder: Path) -> tuple[TransformerXL, Vocabulary | None]:
    """Load the network, in eval mode and the precision of its weights, and the vocabulary, if any.

    A missing file is a ValueError; a damaged file, or one of another folder, a CheckpointError.
    """
    config, weights = read_config(folder), load_content(folder / WEIGHTS)
    with errors_in(folder / WEIGHTS):
        model = load_weights(weights, map_own_weights, config)
    vocab = load_vocabulary_in(folder, config.n_token)
    verify_folder(folder)
    return model, vocab


def hash_rest(folder: Path, net: dict[str, Any]) -> str:
    """Return a checksum of a network's settings and of the vocabulary in its folder."""
    vocab = folder / VOCAB
    return short_hash([net, vocab.read_text(encoding="utf-8") if vocab.is_file() else None])


def verify_folder(folder: Path) -> None:
    """Raise a CheckpointError if files do not match the checksums in config.json."""
    settings = load_json(folder / CONFIG)
    expected, rest = (settings[KEY].get(name) for name in ("weights_sha256", "rest"))
    if rest not in (None, hash_rest(folder, settings["net"])):
        raise CheckpointError(f"{folder / CONFIG}: damaged: it, or {VOCAB}, was changed")
    if expected is None:
        warn_unverified(folder / WEIGHTS, f"{CONFIG} does not have its sha256")
    elif (actual := sha256_of_weights(folder)) != expected:
        wrong = f"its sha256 is {actual[:16]}, that in {CONFIG} {str(expected)[:16]}"
        raise CheckpointError(f"{folder / WEIGHTS}: damaged: {wrong}")


def read_config(folder: Path) -> TransformerXLConfig:
    path = folder / CONFIG
    settings = load_json(path)
    if KEY not in settings:
        raise CheckpointError(f"{path}: not written by convert; convert {folder} first")
    with errors_in(path):
        if settings[KEY]["format"] > FORMAT:
            raise ValueError(f"written by a later release; this one reads formats up to {FORMAT}")
        return TransformerXLConfig(**settings["net"])


def find_checkpoint(path: str | Path) -> Path:
    """Return the checkpoint that a path names: in a run's folder best.ckpt, or else last.ckpt.

    For a folder written by convert or by another code, that is the folder itself; a folder without
    a checkpoint is a CheckpointError.
    """
    path = Path(path)
    if not path.is_dir() or (path / CONFIG).is_file():
        return path
    # Not recursive: a path may be a large folder.
    places = [path / part / name for name in ("best.ckpt", LAST) for part in ("checkpoints", "")]
    if not (found := [place for place in places if place.is_file()]):
        expected = "expected a run's folder, or one written by convert"
        raise CheckpointError(f"{path}: no checkpoint in this folder; {expected}")
    return found[0]


def result_folder(checkpoint: Path) -> Path:
    """Return the folder for results of a checkpoint: its run's, or the converted folder."""
    if checkpoint.is_dir():
        return checkpoint
    folder = checkpoint.parent if checkpoint.parent != Path() else Path.cwd()
    return folder.parent if folder.name == "checkpoints" else folder


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load the content of a checkpoint of fit, or the settings of a converted folder.

    A missing file is a ValueError; a damaged or other file, a CheckpointError.
    """
    path = find_checkpoint(path)
    if path.is_dir():
        return {"hyper_parameters": {"net": read_config(path).to_dict()}}
    if not path.is_file():
        others = ", ".join(sorted(other.name for other in path.parent.glob("*.ckpt")))
        there = f" (there is {others})" if others else ""
        allowed = "expected a checkpoint written by fit, or a folder written by convert"
        raise ValueError(f"ckpt_path: {path}: no such file{there}; {allowed}")
    checkpoint = load_checkpoint(path)
    with refuse_damaged(path, FOREIGN.format(path)):
        # Before a network is built from its settings.
        match_weights(*own_weights(checkpoint))
    if not (manifest := manifest_path(path)).is_file():
        warn_unverified(path, f"its manifest {manifest.name} is missing")
    return checkpoint


def own_weights(checkpoint: dict[str, Any]) -> tuple[dict[str, Tensor], Any, TransformerXLConfig]:
    """Return a run's weights, the function that maps their names, and their network's settings."""
    weights = {name.removeprefix("net."): each for name, each in checkpoint["state_dict"].items()}
    config = TransformerXLConfig(**checkpoint["hyper_parameters"]["net"])
    return weights, map_own_weights, config


def load_run(path: str | Path) -> tuple[TransformerXL, Vocabulary | None]:
    """Load the network, in eval mode, and the vocabulary from a checkpoint or a converted folder.

    Only a converted folder may lack a vocabulary; errors are those of `read_checkpoint`.
    """
    path = find_checkpoint(path)
    if path.is_dir():
        return load_folder(path)
    checkpoint = read_checkpoint(path)
    with refuse_damaged(path, FOREIGN.format(path)):
        model = load_weights(*own_weights(checkpoint))
        return model.float(), load_vocabulary(checkpoint["CorpusDataModule"]["vocab"])


def load(path: str | Path) -> tuple[TransformerXL, Vocabulary]:
    """Load the network of a run, in eval mode, and its vocabulary.

    >>> model, vocab = load("version_0")
    >>> vocab.decode(vocab.encode_text("to be"))
    'to be'

    The path is a .ckpt file, a run's folder (for its best.ckpt), or a folder written by convert.
    A missing file is a ValueError; a damaged one, or one without a vocabulary, a CheckpointError.
    """
    model, known = load_run(path)
    if known is None:
        raise CheckpointError(f"ckpt_path: {path} has no vocabulary; convert with --vocab")
    return model, known


def sha256_of_weights(ckpt_path: str | Path) -> str:
    """Return the sha256 of the file with the weights."""
    path = Path(ckpt_path)
    return sha256_file(path / WEIGHTS if path.is_dir() else path)


def read_tgt_len(path: str | Path) -> int | None:
    """Return the segment length of training; None if the checkpoint does not contain it."""
    settings = read_checkpoint(path).get("datamodule_hyper_parameters", {})
    return settings.get("data", {}).get("tgt_len")


def read_data_settings(ckpt_path: str | Path) -> dict[str, Any]:
    """Return the settings of data in the config.yaml of a checkpoint's run; none without a run."""
    path = result_folder(find_checkpoint(ckpt_path)) / RUN_CONFIG
    if not path.is_file():
        return {}
    with refuse_damaged(path, f"{path}: damaged, or not written by fit; {OTHERWISE}"):
        return dict(load_yaml(path.read_text(encoding="utf-8")).get("data") or {})


def load_training_text(
    ckpt_path: str | Path, data_dir: str | None = None
) -> tuple[str, Store | TaskStore]:
    """Return the name of a run's text and its store, from the config.yaml of its folder.

    `data_dir` replaces the data directory of the run. A missing config.yaml, or a text that has
    changed since, is a DataError.
    """
    state, settings = (
        read_checkpoint(ckpt_path).get("CorpusDataModule"),
        read_data_settings(ckpt_path),
    )
    path = result_folder(find_checkpoint(ckpt_path)) / RUN_CONFIG
    if state is None or not settings:
        missing = f"no {path} names its training text"
        raise DataError(f"ckpt_path: {ckpt_path}: {missing}; {OTHERWISE}")
    with refuse_damaged(path, f"{path}: damaged, or not written by fit; {OTHERWISE}"):
        names = settings.keys() & {field.name for field in fields(DataConfig)}
        config = DataConfig(**{name: settings[name] for name in names})
    store = (replace(config, data_dir=data_dir) if data_dir else config).open()
    if store.fingerprint != state["fingerprint"]:
        changed = f"the checkpoint's is {state['fingerprint']}, this text's {store.fingerprint}"
        raise DataError(f"data ({config.name}): {changed}; {OTHERWISE}")
    return config.name, store
