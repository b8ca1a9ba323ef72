"""Tensors in other people's files. Nothing in them is executed: what is not plain is refused."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import CheckpointError
from ..files import replace_file

REFUSED = re.compile(r"GLOBAL (\S+)")
"""How torch names what a file wants to import."""

SYSTEM = re.compile(r"os error (\d+)")
"""How safetensors names the system's error."""

INSTEAD = (
    "save its tensors with the code that wrote it, torch.save(model.state_dict(), 'sd.pt'), and "
    "the keywords of the model's constructor as JSON"
)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a dictionary that torch.save wrote.

    Raises:
        ValueError: there is no such file.
        CheckpointError: it is something else, or damaged.
    """
    return tensors_of(path, read_safetensors(path) if is_safe(path) else read_torch(path))


def tensors_of(path: Path, held: Any) -> dict[str, Tensor]:
    """What a file holds, if it is tensors by name.

    Raises:
        CheckpointError: it is not.
    """
    pairs = held.items() if isinstance(held, Mapping) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in pairs):
        raise CheckpointError(f"{path}: not a state_dict; it must hold tensors by name")
    return dict(held)


def is_safe(path: Path) -> bool:
    """Whether a file is said to be of the kind that can hold nothing but tensors."""
    return path.suffix == ".safetensors"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    return reading(path, "a safetensors file", lambda: load_file(path))


def read_torch(path: Path, stand_ins: Sequence[Any] = ()) -> Any:
    """What torch.save wrote: tensors and plain values.

    Args:
        path: the file.
        stand_ins: for torch.serialization.safe_globals: classes that only hold what the file says.
    """

    def load() -> Any:
        with torch.serialization.safe_globals(list(stand_ins)):
            return torch.load(path, map_location="cpu", weights_only=True)

    return reading(path, "a file that torch.save wrote", load)


def reading(path: Path, kind: str, load: Callable[[], Any]) -> Any:
    """What a file holds.

    Raises:
        ValueError: there is no such file.
        CheckpointError: it is something else, damaged, or refused for what it would execute.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        return load()
    except MemoryError:
        raise
    except Exception as error:
        # Random bytes make torch.load raise anything: UnicodeDecodeError, OSError, ...
        if found := REFUSED.search(str(error)):
            said = f"{path}: refused: to read it would execute {found[1]}; {INSTEAD}"
            raise CheckpointError(said) from error
        raise CheckpointError(f"{path}: damaged, or not {kind}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The settings in a JSON file.

    Raises:
        ValueError: there is no such file.
        CheckpointError: it is something else.
    """
    held = reading(path, "JSON", lambda: json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(held, dict):
        raise CheckpointError(f"{path}: it must hold settings by name")
    return held


@contextmanager
def of(path: Path) -> Iterator[None]:
    """Say of which file it is that something is wrong.

    Raises:
        CheckpointError: instead of the ValueError, or what a value of a wrong type leads to.
    """
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (TypeError, AttributeError, LookupError) as error:
        raise CheckpointError(f"{path}: a setting is of a wrong kind ({error})") from error


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """A safetensors file, whole or not at all; its metadata are those that others expect."""
    whole = {"memory_format": torch.contiguous_format}
    apart = {name: tensor.detach().cpu().clone(**whole) for name, tensor in tensors.items()}

    def save(part: Path) -> None:
        try:
            save_file(apart, part, {"format": "pt"})
        except SafetensorError as error:
            # It keeps what the system has said in its text only.
            if found := SYSTEM.search(str(error)):
                raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
            raise

    replace_file(path, save)
