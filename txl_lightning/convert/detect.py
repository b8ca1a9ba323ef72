"""Whose checkpoint it is, by what is in it."""

from pathlib import Path
from typing import Any

from ..checkpoints.export import CONFIG
from ..checkpoints.files import KEY
from ..checkpoints.runs import load_run
from ..checkpoints.tensors import is_safe, of, read_json, read_tensors, read_torch, tensors_of
from ..checkpoints.vocabulary import read_vocabulary
from ..data.vocab import Vocabulary
from ..errors import CheckpointError
from ..model import TransformerXL
from . import nvidia
from .huggingface import MODEL_TYPE, load_huggingface
from .original import load_original

Found = tuple[TransformerXL, Vocabulary | None]


def load_any_checkpoint(source: str, args: str | None = None, vocab: str | None = None) -> Found:
    """The network, in eval mode, and the vocabulary, if any, of a checkpoint of anybody's.

    Args:
        source: a checkpoint of fit, a folder of convert's, a folder of Hugging Face's, a
            checkpoint_*.pt of NVIDIA's, or a state_dict of the original code.
        args: the keywords of the original's constructor, as JSON; only for a state_dict.
        vocab: see `read_vocabulary`; left out, what comes with the checkpoint.

    Raises:
        ValueError: a file is missing, or `args` is.
        CheckpointError: it is something else, damaged, or refused for what it would execute.
        DataError: of the vocabulary.
    """
    path = Path(source)
    model, found = in_folder(path) if path.is_dir() else in_file(path, args)
    return model, found if vocab is None else read_vocabulary(vocab, model.config.n_token)


def in_folder(folder: Path) -> Found:
    """What a folder holds."""
    held = read_json(folder / CONFIG)
    if KEY in held:
        return load_run(folder)
    if held.get("model_type") == MODEL_TYPE:
        return load_huggingface(folder)
    kind = held.get("model_type")
    raise CheckpointError(f"{folder / CONFIG}: model_type: invalid {kind}; {MODEL_TYPE} is")


def in_file(path: Path, args: str | None) -> Found:
    """What a file holds."""
    if args is not None or is_safe(path):
        return original(path, read_tensors(path), args)
    held: Any = read_torch(path, nvidia.STAND_INS)
    if nvidia.is_nvidia(held):
        return nvidia.from_checkpoint(path, held)
    if isinstance(held, dict) and "hyper_parameters" in held:
        return load_run(path)
    return original(path, tensors_of(path, held), args)


def original(path: Path, state_dict: dict[str, Any], args: str | None) -> Found:
    """The network of a state_dict of the original code, which says nothing of its sizes."""
    if args is None:
        allowed = "it must be the keywords of the original's constructor, in a JSON file"
        raise ValueError(f"args: missing for the state_dict {path}; {allowed}")
    keywords = read_json(Path(args))
    with of(path):
        return load_original(state_dict, keywords), None
