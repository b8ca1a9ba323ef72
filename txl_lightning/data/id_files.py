"""Token ids written by other programs: .npy, .bin of nanoGPT and llm.c, Megatron's .bin and .idx,
datatrove's .ds.

Ids are read as they are; a document begins where an index or an array of positions says, or after
a separator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy import ndarray

from ..errors import DataError, Settings
from ..files import expand_home, refuse_pointer
from ..terminal import Advance
from .encoding import Encoding, hash_chunks, load_vocabulary_once
from .text_files import SPLITS, SUFFIXES
from .vocab.base import EncodedPiece, Ids, Vocabulary
from .vocab.subwords import LARGEST

IdType = Literal["uint8", "uint16", "uint32", "int32", "int64"]
IDS = "ids"  # name of the vocabulary of ids without text
IDS_AT_ONCE = 1 << 20  # ids that are read at a time
MEGATRON = b"MMIDIDX\x00\x00"
MEGATRON_TYPES = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
NO_STARTS = np.empty(0, np.int64)


@dataclass(frozen=True)
class IdOptions(Settings):
    """Options for reading files of ids."""

    minima: ClassVar = {"separator": 0, "n_token": 1}

    dtype: IdType | None = None
    """Type of the ids in a .bin that does not say it; default uint16, as nanoGPT writes. Ids that
    look like another type are then refused."""
    starts: str | list[str] | None = None
    """The .npy with the positions where documents begin; of three files, three."""
    separator: int | None = None
    """Id that ends each document."""
    n_token: int | None = None
    """Size of the vocabulary without a tokenizer; default the largest id + 1."""


@dataclass(frozen=True)
class IdSlice:
    """The ids of a file from position `low` up to `high`."""

    path: Path
    dtype: np.dtype
    offset: int  # byte at which the ids of the file begin
    low: int
    high: int
    starts: ndarray = field(repr=False)  # positions in the file where documents begin
    separator: int | None = None  # id that ends each document
    is_assumed: bool = False  # neither the file nor an option says its type

    @property
    def array(self) -> ndarray:
        """All ids of the file. It is open only while it is read: there may be many files."""
        return np.memmap(self.path, self.dtype, "r", self.offset)

    @property
    def bounds(self) -> tuple[int, int]:
        return self.low, self.high

    @property
    def n_byte(self) -> int:
        return (self.high - self.low) * self.dtype.itemsize

    def extend(self, high: int) -> IdSlice:
        return replace(self, high=high)

    @property
    def has_documents(self) -> bool:
        return len(self.starts) > 0 or self.separator is not None

    def list_windows(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of the ids from `first` on that are read at a time."""
        starts = range(first, self.high, IDS_AT_ONCE)
        return ((at, min(at + IDS_AT_ONCE, self.high)) for at in starts)

    def chunks(self) -> Iterator[bytes]:
        ids = self.array
        return (ids[slice(*window)].tobytes() for window in self.list_windows(self.low))

    def find_highest(self) -> int:
        return int(self.array[self.low : self.high].max())

    def find_starts(self, low: int, high: int) -> ndarray:
        """Return the positions from low up to high where documents begin."""
        starts = self.starts[slice(*np.searchsorted(self.starts, (low, high)))]
        if self.separator is None:
            return np.unique(starts)
        ends = np.flatnonzero(self.array[max(low - 1, 0) : high - 1] == self.separator)
        return np.union1d(starts, ends + max(low, 1))

    def read_pieces(self, vocab: Vocabulary) -> Iterator[EncodedPiece]:
        """Yield ids, and where documents begin among them; DataError for unknown ids, or an
        assumed type that is too small for the vocabulary."""
        if self.is_assumed and vocab.n_token > 1 + np.iinfo(self.dtype).max:
            size = f"a vocabulary of {vocab.n_token:,} needs a larger type than {self.dtype.name}"
            raise DataError(f"{self.path}: {size}; set data.id_options.dtype")
        for low, high in self.list_windows(self.low):
            ids = self.array[low:high]
            lowest = int(ids.min())
            highest = int(ids.max())
            if lowest < 0 or highest >= vocab.n_token:
                wrong = lowest if lowest < 0 else highest
                known = f"expected ids from 0 to {vocab.n_token - 1:,}"
                raise DataError(f"{self.path}: invalid id {wrong:,}; {known}")
            yield ids, self.find_starts(low, high) - low

    def cut_at(self, position: int) -> tuple[IdSlice, IdSlice]:
        """Cut it at a position in the file, or at the next document."""
        position = max(position, self.low)
        if self.has_documents and position > self.low:
            found = (self.find_starts(*window) for window in self.list_windows(position))
            position = next((int(starts[0]) for starts in found if len(starts)), self.high)
        return replace(self, high=position), replace(self, low=position)


@dataclass(frozen=True)
class IdEncoding(Encoding):
    """All that a store of ids depends on; its vocabulary is a tokenizer's, or IDS."""

    vocab: str = IDS
    id_options: IdOptions = IdOptions()

    def describe(self, data_dir: Path) -> dict[str, Any]:
        starts = hash_chunks(np.ascontiguousarray(part.starts, "<i8") for part in self.slices)
        ids = asdict(self.id_options) | {"starts": starts}
        # The same bytes are other ids in another type.
        types = [part.dtype.str for part in self.slices]
        return super().describe(data_dir) | {"ids": ids, "types": types}

    def describe_vocabulary(self) -> dict[str, Any]:
        return {} if self.vocab == IDS else super().describe_vocabulary()

    def make_vocabulary(self) -> Vocabulary:
        if self.vocab != IDS:
            return super().make_vocabulary()
        highest = max((part.find_highest() for part in self.slices), default=0)
        fix = f"expected ids below {LARGEST:,}; set data.id_options.dtype to their type"
        if highest >= LARGEST:
            raise DataError(f"data.ids: invalid id {highest:,}; {fix}")
        return Ids(self.id_options.n_token or 1 + highest)

    def encode(
        self, split: str, vocab_path: Path, workers: int, advance: Advance
    ) -> Iterator[EncodedPiece]:
        """Yield the ids as they are, by one process, and where documents begin."""
        vocab = load_vocabulary_once(vocab_path, vocab_path.stat().st_mtime_ns)
        for part in self.splits[split]:
            for ids, starts in part.read_pieces(vocab):
                yield ids, starts
                advance(ids.nbytes)


def split_id_files(
    paths: Sequence[Path], options: IdOptions, fractions: Sequence[float]
) -> dict[str, list[IdSlice]]:
    """Return the ids of three files for train, val and test, or of one, cut by `fractions` between
    documents, if these are known."""
    given = [options.starts] if isinstance(options.starts, str) else options.starts or []
    if len(paths) not in (1, len(SPLITS)) or len(given) not in (0, len(paths)):
        expected = "expected one, or three: train, val and test; data.id_options.starts as many"
        raise DataError(f"data.ids: invalid number of files {len(paths)}; {expected}")
    starts = [Path(expand_home(path)) for path in given] or [None] * len(paths)
    try:
        parts = [open_ids(*pair, options) for pair in zip(paths, starts, strict=True)]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error
    if len(parts) == 1:
        [part] = parts
        train, rest = part.cut_at(int(fractions[0] * part.high))
        parts = [train, *rest.cut_at(int((1 - fractions[2]) * part.high))]
    return {name: [part] * (part.n_byte > 0) for name, part in zip(SPLITS, parts, strict=True)}


def open_ids(path: Path, starts: Path | None, options: IdOptions) -> IdSlice:
    """Return the ids of a file; DataError if it is truncated or its index does not fit it."""
    if path.suffix not in SUFFIXES:
        raise DataError(f"data.ids: invalid {path}; expected a file {', '.join(SUFFIXES)}")
    refuse_pointer(path)
    layout = read_layout(path, options)
    n_byte = path.stat().st_size
    expected = layout.offset + layout.n_id * layout.dtype.itemsize
    if n_byte != expected:
        ids = f"{expected:,} of {layout.dtype.name}"
        raise DataError(f"{path}: truncated: {n_byte:,} bytes; expected {ids}")
    positions = layout.starts
    if starts is not None:
        positions = np.asarray(open_array(starts), np.int64)
    # Without differences, which would overflow in a damaged index.
    is_ordered = not (positions[1:] < positions[:-1]).any()
    if not is_ordered or positions.min(initial=0) < 0 or positions.max(initial=0) > layout.n_id:
        wanted = f"expected positions from 0 to {layout.n_id:,}, in order"
        raise DataError(f"{starts or path}: invalid starts of documents; {wanted}")
    where = layout.offset, 0, layout.n_id
    return IdSlice(path, layout.dtype, *where, positions, options.separator, layout.is_assumed)


class Layout(NamedTuple):
    """Type and number of the ids of a file."""

    dtype: np.dtype
    n_id: int
    starts: ndarray = NO_STARTS
    offset: int = 0
    is_assumed: bool = False


def read_layout(path: Path, options: IdOptions) -> Layout:
    """Return the layout of a file of ids; the options give what it does not say."""
    if path.suffix == ".npy":
        array = open_array(path)
        return Layout(array.dtype, len(array), offset=array.offset)
    n_byte = path.stat().st_size
    index = path.with_suffix(".idx")
    if path.suffix == ".ds":
        ends = np.fromfile(path.with_name(f"{path.name}.index"), "<u8").astype(np.int64)
        n_id = int(ends[-1]) if len(ends) else 0
        dtype = np.dtype("<u4" if n_byte == 4 * n_id else "<u2")
        return Layout(dtype, n_id, np.append(0, ends[:-1]))
    if index.is_file():
        return Layout(*load_megatron_index(index))
    # Only a .bin without an index needs it.
    from .id_types import find_type

    dtype, offset, is_assumed = find_type(path, options.dtype)
    n_id = (n_byte - offset) // dtype.itemsize
    return Layout(dtype, n_id, offset=offset, is_assumed=is_assumed)


def open_array(path: Path) -> np.memmap:
    """Open a .npy with whole numbers in one dimension; DataError for anything else."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: damaged, or not a .npy ({error})") from error
    if not isinstance(array, ndarray):
        raise DataError(f"{path}: invalid archive of arrays; expected one .npy")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        shape = f"{array.dtype} of shape {[*array.shape]}"
        raise DataError(f"{path}: invalid {shape}; expected whole numbers in one dimension")
    return array


def load_megatron_index(path: Path) -> tuple[np.dtype, int, ndarray]:
    """Return the type and number of ids in Megatron's .bin, and the positions of documents."""
    raw = np.fromfile(path, np.uint8)
    code = int(raw[17]) if len(raw) >= 34 else 0
    sizes = raw[18:34].view("<u8")
    n_byte = 34 + 12 * int(sizes[0]) + 8 * int(sizes[1]) if code else 0
    if raw[:9].tobytes() != MEGATRON or code not in MEGATRON_TYPES or len(raw) < n_byte:
        raise DataError(f"{path}: damaged, or not an index of Megatron with whole numbers")
    n_sequence = int(sizes[0])
    dtype = np.dtype(MEGATRON_TYPES[code])
    lengths = raw[34 : 34 + 4 * n_sequence].view("<i4")
    rest = raw[34 + 4 * n_sequence : n_byte]
    pointers, documents = np.split(rest.view("<i8"), [n_sequence])
    if len(documents) and (min(documents) < 0 or max(documents) > n_sequence):
        raise DataError(f"{path}: damaged: a document begins after its {n_sequence:,} sequences")
    starts = pointers[documents[documents < n_sequence]] // dtype.itemsize
    return dtype, int(lengths.sum(dtype=np.int64)), starts
