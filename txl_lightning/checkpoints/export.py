"""A network as a folder: model.safetensors, config.json and vocab.json, none of which can run."""

from pathlib import Path

import torch

from ..data.vocab import Vocabulary
from ..errors import CheckpointError
from ..files import write_json, write_text
from ..model import TransformerXL, TransformerXLConfig
from .files import FORMAT, KEY
from .tensors import errors_in, load_content, load_json, save_tensors
from .vocabulary import load_vocabulary_in

CONFIG, WEIGHTS, VOCAB = "config.json", "model.safetensors", "vocab.json"


def save_folder(model: TransformerXL, folder: Path, vocab: Vocabulary | None = None) -> None:
    """Write a network, and its vocabulary if there is one; shared weights are written once."""
    save_tensors(dict(model.named_parameters()), folder / WEIGHTS)
    if vocab is not None:
        write_text(vocab.to_json(), folder / VOCAB)
    # The last, so that what is cut off in the middle is no such folder.
    write_json({KEY: {"format": FORMAT}, "net": model.config.to_dict()}, folder / CONFIG)


def load_folder(folder: Path) -> tuple[TransformerXL, Vocabulary | None]:
    """Load the network, in eval mode and the precision of its weights, and the vocabulary, if any.

    Raises:
        ValueError: a file is missing.
        CheckpointError: one is damaged, or is not of such a folder.
    """
    config = read_config(folder)
    weights = load_content(folder / WEIGHTS)
    with errors_in(folder / WEIGHTS), torch.device("meta"):
        expected = dict(TransformerXL(config).named_parameters())
        if wrong := expected.keys() ^ weights.keys():
            raise ValueError(f"missing, or not of this network: {list_names(wrong)}")
        for name, weight in weights.items():
            if weight.shape != expected[name].shape or not weight.is_floating_point():
                found, allowed = list(weight.shape), list(expected[name].shape)
                raise ValueError(f"{name}: invalid {found}; expected {allowed}")
    model = TransformerXL(config).to(next(iter(weights.values())).dtype)
    # Strict, it would ask for what is shared once more.
    model.load_state_dict(weights, strict=False)
    return model.eval(), load_vocabulary_in(folder, config.n_token)


def read_config(folder: Path) -> TransformerXLConfig:
    """Read the settings of the network in a folder; errors are those of `load_folder`."""
    path = folder / CONFIG
    # No deeper: it may be any folder.
    near = [folder / part / "best.ckpt" for part in ("", "checkpoints")]
    if not path.is_file() and (inside := [found for found in near if found.is_file()]):
        raise ValueError(f"ckpt_path: {folder} is a run's folder; did you mean {inside[0]}?")
    settings = load_json(path)
    if KEY not in settings:
        raise CheckpointError(f"{path}: not written by convert; convert {folder} first")
    with errors_in(path):
        if settings[KEY]["format"] > FORMAT:
            raise ValueError(f"written by a later release; this one reads formats up to {FORMAT}")
        return TransformerXLConfig(**settings["net"])


def list_names(names: set[str], limit: int = 4) -> str:
    """Return the first few names, and how many more there are."""
    shown = ", ".join(sorted(names)[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
