"""Inputs of commands: a checkpoint, the text that it is measured on, a prompt, a device."""

import os
import stat
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ..checkpoints.runs import load, load_training_text, read_tgt_len, result_folder
from ..data.config import DataConfig
from ..data.documents import SPLITS
from ..data.store import Store
from ..data.user_files import find_slices
from ..data.vocab import Vocabulary
from ..errors import DataError, require
from ..files import check_folder_writable
from ..model import TransformerXL, Weights, narrow_weights

Device = Literal["cpu", "cuda"] | None
USUAL_TGT_LEN = 128


def pick_device(device: Device) -> str:
    has_gpu = torch.cuda.is_available()
    require(device != "cuda" or has_gpu, "device", device, "cpu, because torch finds no GPU")
    return device or ("cuda" if has_gpu else "cpu")


def load_model(
    ckpt_path: Path, device: Device, weights: Weights = "float32"
) -> tuple[TransformerXL, Vocabulary]:
    place = pick_device(device)
    model, vocab = load(ckpt_path)
    return narrow_weights(model.to(place), weights), vocab


def make_output_folder(out: str | None, ckpt_path: Path, name: str) -> Path:
    """Return the folder to write to: left out, one of this name beside the checkpoint."""
    folder = result_folder(ckpt_path) / name if out is None else Path(out)
    check_folder_writable("out", folder)
    return folder


def find_tgt_len(ckpt_path: Path) -> int:
    """Return how long segments were in training; a usual length, if a checkpoint does not say."""
    return read_tgt_len(ckpt_path) or USUAL_TGT_LEN


def read_ids(ckpt_path: Path, vocab: Vocabulary, path: str | None, split: str) -> np.ndarray:
    """Return the ids of a file, or else of a split of the checkpoint's text, as one document."""
    if path is not None:
        slices = find_slices(Path(path).expanduser(), DataConfig().data_folder)
        return np.concatenate([ids for each in slices for ids in vocab.encode(each)])
    require(split in SPLITS, "split", split, f"one of {', '.join(SPLITS)}")
    _, store = load_training_text(ckpt_path)
    if not isinstance(store, Store):
        raise ValueError(f"path: invalid null; {ckpt_path} was trained on a task, not text")
    return store.ids(split)


def read_prompt(prompt: str | None, prompt_file: str | None) -> str | None:
    require(prompt is None or prompt_file is None, "prompt", prompt, "null with prompt_file")
    if prompt is not None or prompt_file is not None:
        return prompt if prompt_file is None else read_text(prompt_file)
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    is_piped = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    # A pipe that stays empty is what many tools start a command with; it is no prompt.
    return (read_text("-") or None) if is_piped else None


def read_prompt_lines(path: str) -> list[str]:
    lines = [line for line in read_text(path).splitlines() if line]
    require(len(lines) > 0, "prompts", path, "a file with a prompt in each line")
    return lines


def read_text(path: str) -> str:
    """Return the text of a file, or of the standard input for "-"."""
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        name = "the standard input" if path == "-" else path
        raise DataError(f"prompt: {name}: byte {error.start} is not UTF-8 text") from error
