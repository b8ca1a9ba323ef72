"""Load a checkpoint of any supported format, detected by its content."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoints import contents
from ..checkpoints.loading import LoadedCheckpoint, check_weights, interpret_file, load_folder
from ..checkpoints.saving import verify_checkpoint
from ..data.vocab import Vocabulary
from ..model import Network
from ..runs.folder import CONVERTED, KEY, find_checkpoint
from .huggingface import load_huggingface
from .nvidia import STAND_INS, load_nvidia_checkpoint
from .original import load_original


class AnyCheckpoint(NamedTuple):
    model: Network
    """In eval mode."""
    vocab: Vocabulary | None
    ours: LoadedCheckpoint | None = None
    """The checkpoint, if fit or convert wrote it."""


def load_any_checkpoint(
    source: str, args: str | None = None, vocab: str | None = None
) -> AnyCheckpoint:
    """Load a file or folder; `args` is a JSON file of the original's keywords, for a state_dict.

    `vocab` is as in `read_vocabulary`; by default it is the one that comes with the checkpoint.
    """
    path = find_checkpoint(source)
    loaded = load_from_folder(path) if path.is_dir() else load_from_file(path, args)
    contents.require_finite(path, loaded.model)
    if vocab is None:
        return loaded
    return loaded._replace(vocab=contents.read_vocabulary(vocab, loaded.model.config.n_token))


def load_from_folder(folder: Path) -> AnyCheckpoint:
    if KEY in contents.load_json(folder / CONVERTED):
        return build_checkpoint(load_folder(folder))
    return AnyCheckpoint(*load_huggingface(folder))


def load_from_file(path: Path, args: str | None) -> AnyCheckpoint:
    content: Any = contents.load_content(path, STAND_INS)
    keys = content.keys() if isinstance(content, Mapping) and args is None else set()
    if keys >= {"model_state", "model_config"}:
        return AnyCheckpoint(*load_nvidia_checkpoint(path, content))
    if "hyper_parameters" in keys:
        return build_checkpoint(interpret_file(path, verify_checkpoint(path), content))
    weights = contents.require_tensors(path, content)
    if args is None:
        expected = "expected a JSON file of the keywords of the original's constructor"
        raise ValueError(f"args: missing for the state_dict {path}; {expected}")
    keywords = contents.load_json(Path(args))
    with contents.refuse_invalid_values(path):
        return AnyCheckpoint(load_original(weights, keywords, path), None)


def build_checkpoint(checkpoint: LoadedCheckpoint) -> AnyCheckpoint:
    check_weights(checkpoint)
    return AnyCheckpoint(checkpoint.build_network(), checkpoint.load_vocabulary(), checkpoint)
