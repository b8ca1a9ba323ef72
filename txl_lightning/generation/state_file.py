"""A decoding state in a file, to continue its texts later: safetensors, never a pickle."""

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..errors import DataError, require
from ..files import replace_file
from ..model import CachedReader, TransformerXL
from .state import DecodingState

FORMAT = "txl_lightning decoding state 3"
"""The number changes with what a file holds."""


def save_state(path: Path, state: DecodingState, weights_sha256: str, ext_len: int) -> None:
    """Write a state, whole or not at all."""
    tensors = state.memory.tensors() | {
        "tokens_BL": state.tokens_BL,
        "length_B": state.length_B,
        "n_read": torch.tensor(state.n_read),
        "ext_len": torch.tensor(ext_len),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {
        "format": FORMAT,
        "weights": weights_sha256,
        "tensors": hashlib.sha256(save(tensors)).hexdigest(),
    }
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
    if about.get("tensors") != hashlib.sha256(save(tensors)).hexdigest():
        raise DataError(f"state_file: {path}: damaged: the checksum of its tensors differs")
    if about.get("weights") != weights_sha256:
        raise DataError(f"state_file: {path}: written with another checkpoint")
    length_B = tensors.pop("length_B")
    n_read, saved_ext_len = (int(tensors.pop(name)) for name in ("n_read", "ext_len"))
    tensors = {name: tensor.to(model.device) for name, tensor in tensors.items()}
    tokens_BL = tensors.pop("tokens_BL")
    memory = type(CachedReader(model).empty_memory(1)).from_tensors(tensors)
    for name, asked, saved in (
        ("mem_len", mem_len, memory.mem_len),
        ("ext_len", ext_len, saved_ext_len),
    ):
        require(asked in (None, saved), name, asked, f"{saved}, as in {path}")
    return DecodingState(tokens_BL, length_B, memory, n_read), saved_ext_len
