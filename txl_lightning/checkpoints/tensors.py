"""Load tensors and settings from untrusted files; files that would execute code are refused."""

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

# Matches, in torch's error, the class that a file would import.
CODE = re.compile(r"GLOBAL (\S+)")
SAFE_EXPORT = (
    "save its tensors with the code that wrote it, torch.save(model.state_dict(), 'sd.pt'), and "
    "the keywords of the model's constructor as JSON"
)


def load_content(path: Path, stand_ins: Sequence[Any] = ()) -> Any:
    """Load a file of safetensors or torch.save: tensors, plain values, and `stand_ins`.

    `stand_ins` are allowed classes that only store values (torch.serialization.safe_globals). A
    missing file is a ValueError; one that is damaged or would execute code, a CheckpointError.
    """
    is_pickle = path.suffix != ".safetensors"
    expected = "a file that torch.save wrote" if is_pickle else "a safetensors file"
    with (
        refuse_damaged(path, f"{path}: damaged, or not {expected}"),
        torch.serialization.safe_globals(list(stand_ins)),
    ):
        return torch.load(path, "cpu", weights_only=True) if is_pickle else load_file(path)


def load_json(path: Path) -> dict[str, Any]:
    """Load the settings of a JSON file; errors are those of `load_content`."""
    require_file(path)
    return read_json(path, refusal=CheckpointError)


def require_file(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")


@contextmanager
def refuse_damaged(path: Path, message: str) -> Iterator[None]:
    """Turn any error of reading a file into a CheckpointError."""
    require_file(path)
    try:
        yield
    except MemoryError:
        raise
    except PermissionError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:
        # Random bytes make torch.load raise any error: UnicodeDecodeError, OSError, ...
        if match := CODE.search(str(error)):
            message = f"{path}: refused: reading it would execute {match[1]}; {SAFE_EXPORT}"
        raise CheckpointError(message) from error


@contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Turn errors from invalid values into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: a setting has a wrong type ({reason})") from error


def require_tensors(path: Path, content: Any) -> dict[str, Tensor]:
    """Return the content of a file if it is a dict of tensors; else CheckpointError."""
    pairs = content.items() if isinstance(content, Mapping) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in pairs):
        raise CheckpointError(f"{path}: not a state_dict; expected tensors by name")
    return dict(content)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file atomically, with the metadata that other codes expect."""
    options = {"memory_format": torch.contiguous_format}
    # safetensors refuses tensors that share memory.
    copies = {name: tensor.detach().cpu().clone(**options) for name, tensor in tensors.items()}
    # safetensors' save_file reports the system's error only as text.
    replace_file(path, lambda part: part.write_bytes(save(copies, {"format": "pt"})))
