"""Tokens on disk, memory-mapped, with a manifest that says what they are."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock

from .corpora import SPLITS, Span
from .errors import DataError
from .vocab import BUILT_IN, Vocabulary, load, named

VERSION = 1


@dataclass(frozen=True)
class Store:
    """A prepared text: one array of ids for each split."""

    folder: Path
    vocab: Vocabulary
    sha256: str
    """Of the whole text: train, val and test together."""

    def ids(self, split: str) -> np.ndarray:
        """The tokens of a split, read from disk when they are looked at."""
        path = self.folder / f"{split}.npy"
        return np.load(path, mmap_mode="r")


def prepare(spans: Mapping[str, Sequence[Span]], vocab_name: str, root: Path) -> Store:
    """The store of a text under `root`, built when it is not there yet.

    It is built aside and renamed, so that it is either whole or absent; of several processes one
    builds and the others wait.

    Raises:
        DataError: the text cannot be encoded, or nothing can be written under `root`.
    """
    sha256 = digest(spans)
    options = {"version": VERSION, "text": sha256, "vocab": vocab_name, "sizes": sizes(spans)}
    if vocab_name not in BUILT_IN and Path(vocab_name).is_file():
        options["vocab"] = named(vocab_name, ()).to_json()
    key = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]
    folder = root / "prepared" / key
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():
                    build(folder, spans, vocab_name, options)
        except OSError as error:
            raise DataError(f"data.root: {root} cannot be written ({error.strerror})") from error
    return Store(folder, load((folder / "vocab.json").read_text()), sha256)


def build(
    folder: Path, spans: Mapping[str, Sequence[Span]], vocab_name: str, options: dict
) -> None:
    """Encode every split into `folder`."""
    everything = [span for name in SPLITS for span in spans[name]]
    vocab = named(vocab_name, everything)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix="building-"))
    try:
        for name in SPLITS:
            write_ids(aside / f"{name}.npy", vocab, spans[name])
        (aside / "vocab.json").write_text(vocab.to_json())
        (aside / "manifest.json").write_text(json.dumps(options, indent=1))
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_ids(path: Path, vocab: Vocabulary, spans: Sequence[Span]) -> None:
    """The ids of the spans as one array in numpy's own format, streamed through."""
    raw = path.with_suffix(".raw")
    dtype = np.min_scalar_type(max(vocab.n_token - 1, 0))
    with raw.open("wb") as file:
        for ids in vocab.encode(spans):
            file.write(ids.astype(dtype, copy=False).tobytes())
        count = file.tell() // dtype.itemsize
    header = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    with path.open("wb") as file, raw.open("rb") as body:
        np.lib.format.write_array_header_1_0(file, header)
        shutil.copyfileobj(body, file)
    raw.unlink()


def digest(spans: Mapping[str, Sequence[Span]]) -> str:
    """sha256 of the whole text."""
    sha256 = hashlib.sha256()
    try:
        for name in SPLITS:
            for span in spans[name]:
                for chunk in span.chunks():
                    sha256.update(chunk)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error
    return sha256.hexdigest()


def sizes(spans: Mapping[str, Sequence[Span]]) -> list[int]:
    """Bytes in each split."""
    return [sum(span.stop - span.start for span in spans[name]) for name in SPLITS]
