"""Inputs of commands: a checkpoint, the text that it is measured on, a prompt, a device."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch

from ..checkpoints import LoadedCheckpoint, load_checkpoint
from ..checkpoints.loading import GIVE_TEXT, load_data_settings
from ..data.archives import COMPRESSED
from ..data.id_files import IdOptions, open_array
from ..data.json_lines import LINES, LineFormat
from ..data.sources import DataConfig
from ..data.store import Store
from ..data.text_files import SPLITS, find_slices, has_records
from ..data.vocab import Bytes, Vocabulary
from ..errors import DataError, invalid, print_notice, require
from ..files import check_file_writable, check_folder_writable, has_ending
from ..generation.state import SEGMENT_LEN
from ..model import EvalLengths, Network, Weights, pack_weights
from ..model.memory import describe_new_distances
from .given_texts import find_kind

Device = Literal["cpu", "cuda"] | None
ESCAPES = {"n": "a line end", "r": "a carriage return", "t": "a tab"}
"""Letters after a backslash, which a shell leaves as two characters between plain quotes."""


def pick_device(device: Device) -> str:
    has_gpu = torch.cuda.is_available()
    require(device != "cuda" or has_gpu, "device", device, "cpu, because torch finds no GPU")
    return device or ("cuda" if has_gpu else "cpu")


def load_model(
    ckpt_path: str | Path, device: Device, weights: Weights = "float32", trains: bool = False
) -> tuple[LoadedCheckpoint, Network, Vocabulary]:
    """Load a checkpoint; return it with its network on the device, and its vocabulary. Weights in
    float32 that dynamic evaluation trains are not packed."""
    name = pick_device(device)
    checkpoint = load_checkpoint(ckpt_path)
    model, vocab = checkpoint.build()
    is_packed = weights != "float32" or not trains
    model = model.to(name)
    return checkpoint, pack_weights(model, weights) if is_packed else model, vocab


@dataclass
class DistanceNotice:
    """Prints once that tokens have larger distances than in training, where a length is given."""

    checkpoint: LoadedCheckpoint
    mem_len: int | None
    ext_len: int = 0
    is_printed: bool = False

    def check(self, n_token: int, longest: int, n_later: int = 0) -> None:
        """Print for a text of which `n_token` are read, at most `longest` of them at once.

        `n_later` more are read one by one.
        """
        if self.is_printed or (self.mem_len is None and self.ext_len == 0):
            return
        lengths = EvalLengths(self.mem_len)
        config = self.checkpoint.config
        # Memory may have all that is before.
        n_new = n_token - lengths.resolve(config).mem_len - self.ext_len
        segment_len = self.ext_len + max(min(longest, n_new, SEGMENT_LEN), 1)
        fix = "a smaller --mem_len" + " or --ext_len" * (self.ext_len > 0)
        how = self.checkpoint.trained_len, lengths, segment_len, n_token + n_later, fix
        if notice := describe_new_distances(config, *how):
            print_notice(notice)
            self.is_printed = True


def check_array_file(key: str, path: str | Path | None) -> None:
    """Raise an error if an array could not be written to a file, unless it is None.

    ValueError if its name promises another format than .npy.
    """
    check_file_writable(key, path)
    is_npy = path is None or Path(path).suffix == ".npy" or Path(path).is_fifo()
    require(is_npy, key, path, "a file whose name ends with .npy")


def check_outputs(per_token: str | None, per_document: str | None, out: str | None) -> None:
    """Refuse files that could not be written, before a text is read."""
    check_array_file("per_token", per_token)
    require(not Path(per_token or "").is_fifo(), "per_token", per_token, "a file, not a pipe")
    check_file_writable("out", out)
    check_file_writable("per_document", per_document)
    given = {"per_token": per_token, "per_document": per_document, "out": out}
    found: dict[Path, str] = {}
    for key, path in given.items():
        # A device or a pipe takes both.
        if path is not None and (not Path(path).exists() or Path(path).is_file()):
            other = found.setdefault(Path(path).resolve(), key)
            require(other == key, key, path, f"another file than that of {other}")


def make_output_folder(out: str | None, run_folder: Path, name: str) -> Path:
    """Return the folder to write to: left out, one of this name in the run's folder."""
    folder = run_folder / name if out is None else Path(out)
    check_folder_writable("out", folder)
    return folder


def choose_split(path: str | None, split: str | None) -> str | None:
    """Return the split to read: left out, val; None for a file that has none."""
    if path is None or find_kind(Path(path)) == "store":
        split = "val" if split is None else split
        require(split in SPLITS, "split", split, f"one of {', '.join(SPLITS)}")
        return split
    # A missing file is named when it is read.
    is_there = Path(path).exists()
    require(split is None or not is_there, "split", split, "left out with a path that is no store")
    return None


def read_ids(
    checkpoint: LoadedCheckpoint,
    vocab: Vocabulary,
    path: str | None,
    split: str | None,
    n_most: int | None = None,
) -> np.ndarray:
    """Return the first ids of a file, or else of a split of the checkpoint's text, as one document;
    print the share that is unknown."""
    split = choose_split(path, split)
    if path is not None:
        ids = read_path(checkpoint, vocab, path, split, n_most)
        warn_of_unknown(vocab, ids)
        return ids
    _, store = checkpoint.open_text()
    if not isinstance(store, Store):
        raise ValueError(f"path: invalid null; {checkpoint.path} was trained on a task, not text")
    ids = store.ids(split)[:n_most]
    warn_of_unknown(vocab, ids)
    return ids


def read_path(
    checkpoint: LoadedCheckpoint,
    vocab: Vocabulary,
    path: str,
    split: str | None,
    n_most: int | None,
) -> np.ndarray:
    """Return the first ids of a whole text or file of ids, or of a split of a store."""
    kind = find_kind(Path(path))
    if kind == "path":
        is_bytes = isinstance(vocab, Bytes)
        data_dir = DataConfig().data_folder
        how = LineFormat(text_key=find_text_key(checkpoint, Path(path), data_dir))
        slices = find_slices(Path(path), data_dir, is_bytes, how)
        return np.concatenate([ids for each in slices for ids in vocab.encode(each)])[:n_most]
    config = DataConfig(**{kind: path}, id_options=find_id_options(checkpoint)).put_all_in_test()
    with TemporaryDirectory(prefix="txl-") as folder:
        return np.array(
            config.source.encode(split or "test", vocab, Path(folder)).tokens.ids[:n_most]
        )


def find_id_options(checkpoint: LoadedCheckpoint) -> IdOptions:
    """Return how the ids of training were read: the type of a .bin, and the separator."""
    used = checkpoint.saved.get("CorpusDataModule", {}).get("ids")
    # Checkpoints of earlier releases do not have them; nor does a folder of convert.
    used = used or load_data_settings(checkpoint.path, GIVE_TEXT).get("id_options") or {}
    return IdOptions(dtype=used.get("dtype"), separator=used.get("separator"))


def find_text_key(checkpoint: LoadedCheckpoint, path: Path, data_dir: Path) -> str | None:
    """Return the key that the texts of training had, for a path with JSON lines; None for others,
    or if it is the usual one."""
    key = checkpoint.data_settings.get("text_key")
    is_there = key is not None and path.exists()
    return key if is_there and has_records(path, data_dir, LineFormat(text_key=key)) else None


def reads_records(checkpoint: LoadedCheckpoint) -> bool:
    """Return True if lines, or JSON lines by settings or names, were documents in training."""
    settings = checkpoint.data_settings
    # Each record is as a file.
    if (unit := settings.get("document_unit")) in ("lines", "none"):
        return unit == "lines"
    paths = settings.get("path") or ()
    paths = [paths] if isinstance(paths, str) else paths
    endings = [ending + packed for ending in LINES for packed in ("", *COMPRESSED)]
    is_named = any(has_ending(Path(path), endings) for path in paths)
    return is_named or any(settings.get(key) for key in ("text_key", "id_key"))


def share_unknown(vocab: Vocabulary, ids: np.ndarray) -> float:
    """Return the share of tokens that stand for text the vocabulary does not know."""
    return vocab.count_unknown(ids) / max(len(ids), 1)


def warn_of_unknown(vocab: Vocabulary, ids: np.ndarray) -> None:
    """Print the share of tokens that stand for unknown text, whose loss says little."""
    if share := share_unknown(vocab, ids):
        print_notice(f"warning: {share:.1%} of the tokens are unknown to the vocabulary")


def read_prompt(prompt: str | None, prompt_file: str | None) -> str | None:
    require(prompt is None or prompt_file is None, "prompt", prompt, "null with prompt_file")
    # The standard input only where it is asked for: in a shell's loop it is the loop's own.
    file = "-" if prompt == "-" else prompt_file
    return prompt if file is None else read_text(file)


def read_prompt_lines(path: str) -> list[str]:
    # str.splitlines also splits at characters such as a form feed.
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    lines = [line for line in text.split("\n") if line]
    require(len(lines) > 0, "prompts", path, "a file with a prompt in each line")
    return lines


def read_prompt_ids(text: str, n_token: int) -> np.ndarray:
    """Return the ids in a .npy, or in a text with spaces or commas between them."""
    if text.endswith(".npy"):
        ids = open_array(Path(text))
    else:
        words = text.replace(",", " ").split()
        is_number = all(word.isascii() and word.isdecimal() for word in words)
        require(is_number and len(words) > 0, "prompt_ids", text, 'ids, as "3 1 4", or a .npy')
        # As Python's numbers: one may exceed those of numpy.
        ids = np.array([int(word) for word in words], object)
    for wrong in (*ids[ids < 0][:1], *ids[ids >= n_token][:1]):
        raise invalid("prompt_ids", int(wrong), f"ids from 0 to {n_token - 1}")
    return np.array(ids, np.int64)


def hint_at_escapes(**texts: str | Sequence[str] | None) -> None:
    """Print a line for each text that has a backslash and a letter, which stay two characters."""
    for key, given in texts.items():
        for text in (given,) if isinstance(given, str) else given or ():
            if found := re.search(rf"\\([{''.join(ESCAPES)}])", text):
                what = f"{found[0]} is a backslash and {found[1]}, not {ESCAPES[found[1]]}"
                print_notice(f"{key}: {what}, which bash writes as $'{found[0]}'")


def read_text(path: str) -> str:
    """Return the text of a file, or of the standard input for "-", without a byte order mark."""
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        name = "the standard input" if path == "-" else path
        raise DataError(f"prompt: {name}: byte {error.start} is not UTF-8 text") from error
