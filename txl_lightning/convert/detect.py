"""Load a checkpoint of any supported format, detected by its content."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoints.files import KEY
from ..checkpoints.runs import CONFIG, find_checkpoint, load_run
from ..checkpoints.tensors import errors_in, load_content, load_json, require_tensors
from ..checkpoints.vocabulary import read_vocabulary
from ..data.vocab import Vocabulary
from ..errors import CheckpointError
from ..model import TransformerXL
from .huggingface import MODEL_TYPE, load_huggingface
from .nvidia import STAND_INS, load_nvidia_checkpoint
from .original import load_original

Loaded = tuple[TransformerXL, Vocabulary | None]


def load_any_checkpoint(source: str, args: str | None = None, vocab: str | None = None) -> Loaded:
    """Load a checkpoint of any supported format: network in eval mode, vocabulary if present.

    Args:
        source: the file or folder.
        args: the keywords of the original's constructor, as JSON; only for a state_dict.
        vocab: see `read_vocabulary`; by default the one that comes with the checkpoint.
    """
    path = find_checkpoint(source)
    model, own = load_from_folder(path) if path.is_dir() else load_from_file(path, args)
    return model, own if vocab is None else read_vocabulary(vocab, model.config.n_token)


def load_from_folder(folder: Path) -> Loaded:
    settings = load_json(folder / CONFIG)
    if KEY in settings:
        return load_run(folder)
    kind = settings.get("model_type")
    if kind == MODEL_TYPE:
        return load_huggingface(folder)
    raise CheckpointError(f"{folder / CONFIG}: model_type: invalid {kind}; expected {MODEL_TYPE}")


def load_from_file(path: Path, args: str | None) -> Loaded:
    content: Any = load_content(path, STAND_INS)
    keys = content.keys() if isinstance(content, Mapping) and args is None else set()
    if keys >= {"model_state", "model_config"}:
        return load_nvidia_checkpoint(path, content)
    if "hyper_parameters" in keys:
        return load_run(path)
    weights = require_tensors(path, content)
    if args is None:
        expected = "expected a JSON file of the keywords of the original's constructor"
        raise ValueError(f"args: missing for the state_dict {path}; {expected}")
    keywords = load_json(Path(args))
    with errors_in(path):
        return load_original(weights, keywords, path), None
