"""Texts and what is remembered of them in a file, to go on another day; safetensors, no pickle."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import DataError, StorageError, require
from ..model import TransformerXL
from .state import DecodingState, unread

FORMAT = "txl_lightning memory 2"
"""What the file says that it is; the number is raised when what it holds changes."""


def save(path: str | Path, model: TransformerXL, texts: DecodingState, ext_len: int) -> None:
    """Put texts in a file, whole or not at all.

    Raises:
        StorageError: it cannot be written.
    """
    ours = {"tokens_BL": texts.tokens_BL, "length_B": texts.length_B}
    tensors = texts.memory.tensors() | ours | {"read": torch.tensor(texts.read)}
    tensors = {name: plain(tensor) for name, tensor in tensors.items()}
    tensors["ext_len"] = torch.tensor(ext_len)
    about = {"format": FORMAT, "tensors": digest(tensors)}
    part = Path(path).with_name(f".{Path(path).name}.{os.getpid()}.part")
    try:
        save_file(tensors, part, about | {"weights": digest(model.state_dict())})
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"memory: {path}: cannot be written ({reason})") from error
    finally:
        part.unlink(missing_ok=True)


def load(
    path: str | Path, model: TransformerXL, mem_len: int | None = None, ext_len: int | None = None
) -> tuple[DecodingState, int]:
    """The texts of a file, and the `ext_len` that they were written with.

    Raises:
        DataError: it is not such a file, is damaged, or another network's.
        ValueError: it was written with another `mem_len` or `ext_len` than is asked for.
    """
    about, tensors = contents(path)
    if about.get("format") != FORMAT:
        raise DataError(f"memory: {path}: not a memory that generate wrote, or of another release")
    if about.get("tensors") != digest(tensors):
        raise DataError(f"memory: {path}: damaged: its tensors are not those that were written")
    if about.get("weights") != digest(model.state_dict()):
        raise DataError(
            f"memory: {path}: of other weights; it needs the checkpoint it was made with"
        )
    length_B = tensors.pop("length_B")
    read, saved_ext_len = (int(tensors.pop(name)) for name in ("read", "ext_len"))
    tensors = {name: tensor.to(model.device) for name, tensor in tensors.items()}
    tokens_BL = tensors.pop("tokens_BL")
    memory = type(unread(model, 1, 0)).from_tensors(tensors)
    for name, asked, saved in (
        ("mem_len", mem_len, memory.mem_len),
        ("ext_len", ext_len, saved_ext_len),
    ):
        require(asked in (None, saved), name, asked, f"the {saved} of {path}")
    return DecodingState(tokens_BL, length_B, memory, read), saved_ext_len


def contents(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What a file says of itself, and its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise DataError(f"memory: {path}: not a memory that generate wrote ({error})") from error


def digest(tensors: Mapping[str, Tensor]) -> str:
    """What two sets of tensors share only if they are the same."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha256.update(plain(tensor).flatten().view(torch.uint8).numpy())
    return sha256.hexdigest()


def plain(tensor: Tensor) -> Tensor:
    """A tensor in the main memory, and in one piece."""
    return tensor.detach().cpu().contiguous()
