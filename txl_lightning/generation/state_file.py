"""A decoding state in a file, to continue its texts later: safetensors, never a pickle."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import DataError, require
from ..files import replace_file
from ..model import CachedReader, TransformerXL
from .state import DecodingState

FORMAT = "txl_lightning decoding state 3"
"""Named in the file; the number changes with what a file holds."""


def save_state(path: Path, state: DecodingState, weights_sha256: str, ext_len: int) -> None:
    """Write a state, whole or not at all.

    Raises:
        StorageError: it cannot be written.
    """
    tensors = state.memory.tensors() | {
        "tokens_BL": state.tokens_BL,
        "length_B": state.length_B,
        "n_read": torch.tensor(state.n_read),
        "ext_len": torch.tensor(ext_len),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {"format": FORMAT, "weights": weights_sha256, "tensors": sha256_of_tensors(tensors)}
    replace_file(path, lambda part: part.write_bytes(save(tensors, about)))


def load_state(
    path: Path,
    model: TransformerXL,
    weights_sha256: str,
    mem_len: int | None = None,
    ext_len: int | None = None,
) -> tuple[DecodingState, int]:
    """Load a state and the `ext_len` that it was written with.

    Raises:
        DataError: it is not such a file, is damaged, or belongs to another checkpoint.
        ValueError: it was written with another `mem_len` or `ext_len` than is asked for.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"state_file: {path}: not written by generate ({error})") from error
    if about.get("format") != FORMAT:
        raise DataError(f"state_file: {path}: not written by generate of this release")
    if about.get("tensors") != sha256_of_tensors(tensors):
        raise DataError(f"state_file: {path}: damaged: the checksum of its tensors differs")
    if about.get("weights") != weights_sha256:
        raise DataError(f"state_file: {path}: written with another checkpoint")
    length_B = tensors.pop("length_B")
    n_read, saved_ext_len = (int(tensors.pop(name)) for name in ("n_read", "ext_len"))
    tensors = {name: tensor.to(model.device) for name, tensor in tensors.items()}
    tokens_BL = tensors.pop("tokens_BL")
    memory = type(CachedReader(model).empty_memory(1)).from_tensors(tensors)
    require(
        mem_len in (None, memory.mem_len), "mem_len", mem_len, f"{memory.mem_len}, as in {path}"
    )
    require(ext_len in (None, saved_ext_len), "ext_len", ext_len, f"{saved_ext_len}, as in {path}")
    return DecodingState(tokens_BL, length_B, memory, n_read), saved_ext_len


def sha256_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of the tensors' names, types, shapes and values."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha256.update(tensor.flatten().view(torch.uint8).numpy())
    return sha256.hexdigest()
