"""Tensors and settings in anybody's files; a file that would execute anything is refused."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from ..errors import CheckpointError
from ..files import read_json, replace_file

# How torch names what a file wants to import.
CODE = re.compile(r"GLOBAL (\S+)")
INSTEAD = (
    "save its tensors with the code that wrote it, torch.save(model.state_dict(), 'sd.pt'), and "
    "the keywords of the model's constructor as JSON"
)


def load_content(path: Path, stand_ins: Sequence[Any] = ()) -> Any:
    """Return what safetensors or torch.save wrote: tensors, plain values, and `stand_ins`.

    These are classes that only hold what a file says (torch.serialization.safe_globals). A missing
    file is a ValueError; one that is damaged, or would execute anything, a CheckpointError.
    """
    is_pickle = path.suffix != ".safetensors"
    kind = "a file that torch.save wrote" if is_pickle else "a safetensors file"
    with (
        refuse_damaged(path, f"{path}: damaged, or not {kind}"),
        torch.serialization.safe_globals(list(stand_ins)),
    ):
        return torch.load(path, "cpu", weights_only=True) if is_pickle else load_file(path)


def load_json(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file, or raise as `load_content` does."""
    require_file(path)
    return read_json(path, refusal=CheckpointError)


def require_file(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")


@contextmanager
def refuse_damaged(path: Path, message: str) -> Iterator[None]:
    """Make a CheckpointError of whatever reading a file leads to."""
    require_file(path)
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        # Random bytes make torch.load raise anything: UnicodeDecodeError, OSError, ...
        if found := CODE.search(str(error)):
            message = f"{path}: refused: to read it would execute {found[1]}; {INSTEAD}"
        raise CheckpointError(message) from error


@contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Make a CheckpointError, which names the file, of what invalid values lead to."""
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (TypeError, AttributeError, LookupError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: a setting is of a wrong kind ({reason})") from error


def require_tensors(path: Path, content: Any) -> dict[str, Tensor]:
    """Return the content of a file, if it is tensors by name."""
    pairs = content.items() if isinstance(content, Mapping) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in pairs):
        raise CheckpointError(f"{path}: not a state_dict; expected tensors by name")
    return dict(content)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file, whole or not at all, with the metadata that other codes expect."""
    whole = {"memory_format": torch.contiguous_format}
    # It refuses tensors that share memory.
    apart = {name: tensor.detach().cpu().clone(**whole) for name, tensor in tensors.items()}
    # Its own save_file says in words only what the system's error is.
    replace_file(path, lambda part: part.write_bytes(save(apart, {"format": "pt"})))
