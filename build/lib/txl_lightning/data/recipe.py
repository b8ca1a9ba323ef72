"""What the tokens of a text depend on; its store is made once, where all texts are or elsewhere."""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..errors import DataError, StorageError, print_notice, require
from ..progress import Advance, show_progress
from .documents import SPLITS, DocumentUnit, FileSlice, cache_result
from .id_files import IDS, IdOptions, IdSlice
from .store import Store, build_store, encode_slices
from .vocab import BUILT_IN, SubwordOptions, WordOptions, build_vocabulary
from .vocab.base import Ids, Piece, Vocabulary
from .workers import Workers

VERSION = 7  # version of the files of a store
LARGE = 10_000_000  # bytes of text from which a message is printed, because encoding takes long


@dataclass(frozen=True)
class Recipe:
    """All that tokens depend on; without a document unit each split is one document."""

    splits: Mapping[str, Sequence[FileSlice] | Sequence[IdSlice]]
    vocab: str = "bytes"
    document_unit: DocumentUnit | None = None
    words: WordOptions = WordOptions()
    subwords: SubwordOptions = SubwordOptions()
    id_options: IdOptions | None = None  # of files of ids; None for a text

    @property
    def slices(self) -> list[Any]:
        return [part for name in SPLITS for part in self.splits[name]]

    def describe(self, data_dir: Path) -> dict[str, Any]:
        """Return it as plain values, with the sha256 of train, val and test together."""
        sizes = {name: [part.n_byte for part in self.splits[name]] for name in SPLITS}
        description: dict[str, Any] = {
            "version": VERSION,
            "text": self.hash_text(data_dir),
            "vocab": self.vocab,
            "documents": self.document_unit,
            "bytes": {name: sum(sizes[name]) for name in SPLITS},
            # A line or a document also ends with its file.
            "cuts": files.short_hash(sizes),
        }
        if self.id_options:
            starts = hash_chunks(np.ascontiguousarray(part.starts, "<i8") for part in self.slices)
            description["ids"] = asdict(self.id_options) | {"starts": starts}
        match self.vocab:
            case "words":
                description["words"] = asdict(self.words.fill())
            case "bpe" | "unigram":
                description["subwords"] = asdict(self.subwords)
            case name if name not in (*BUILT_IN, IDS):
                vocab = files.sha256_file(Path(name)) if Path(name).is_file() else name
                description |= {"vocab": vocab, "words": asdict(self.words.fill())}
        # As a manifest has it: tuples become lists.
        return json.loads(json.dumps(description))

    def hash_text(self, data_dir: Path) -> str:
        paths = dict.fromkeys(part.path for part in self.slices)
        cuts = [(str(part.path), *part.bounds) for part in self.slices]
        chunks = (chunk for part in self.slices for chunk in part.chunks())
        try:
            return cache_result(["sha256", cuts], paths, data_dir, partial(hash_chunks, chunks))
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error

    def make_vocabulary(self) -> Vocabulary:
        if self.vocab == IDS:
            highest = (part.find_highest() for part in self.slices)
            return Ids(self.id_options.n_token or 1 + max(highest, default=0))
        names = BUILT_IN.get(self.vocab, ("train",))
        slices = [part for name in names for part in self.splits[name]]
        return build_vocabulary(self.vocab, slices, self.words, self.subwords)

    def build(self, folder: Path, description: dict[str, Any], workers: Workers) -> None:
        """Build the store in an empty folder."""
        with show_progress("vocabulary", None):
            vocab = self.make_vocabulary()
        files.write_text(vocab.to_json(), folder / "vocab.json")
        total = sum(part.n_byte for part in self.slices)
        if total > LARGE and not sys.stderr.isatty():
            print_notice(f"encoding {total:,} bytes")
        with show_progress("encoding", total) as advance:
            how = (folder, vocab, workers, advance)
            pieces = {split: self.encode(self.splits[split], *how) for split in SPLITS}
            build_store(folder, pieces, vocab, description)

    def encode(
        self,
        slices: Sequence[Any],
        folder: Path,
        vocab: Vocabulary,
        workers: Workers,
        advance: Advance,
    ) -> Iterator[Piece]:
        """Yield the ids of slices, and where documents begin; the vocabulary is in the folder."""
        if not self.id_options:
            yield from encode_slices(folder, slices, self.document_unit, workers, advance)
        for part in slices if self.id_options else ():
            for ids, starts in part.read_pieces(vocab):
                yield ids, starts
                advance(ids.nbytes)


def hash_chunks(chunks: Iterable[bytes | np.ndarray]) -> str:
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
    return sha256.hexdigest()


def prepare_text(
    recipe: Recipe, data_dir: Path, whole: bool = False, workers: Workers = map
) -> Store:
    """Return the store of a text under `data_dir`, built if absent or damaged; `whole` compares all
    files with their checksums."""
    # Everything that the tokens depend on names the folder.
    description = recipe.describe(data_dir)
    folder = data_dir / "prepared" / files.short_hash(description)
    build = partial(recipe.build, description=description, workers=workers)
    files.create_folder(folder, build)
    if problem := Store(folder, data_dir).find_damage(whole):
        try:
            files.create_folder(
                folder, build, lambda: not Store(folder, data_dir).find_damage(whole)
            )
        except StorageError as error:
            raise DataError(f"{problem}; {error}") from error
        print_notice(f"warning: {problem}; the text was encoded again")
    return Store(folder, data_dir)


def prepare_folder(recipe: Recipe, folder: Path, data_dir: Path, workers: Workers = map) -> Store:
    """Return the store of a text in a folder of its own, built if absent."""
    description = recipe.describe(data_dir)
    files.create_folder(folder, partial(recipe.build, description=description, workers=workers))
    store = Store(folder, data_dir)
    # The manifest of ids counts the bytes of their text.
    same = {name: store.manifest.get(name) for name in description.keys() - {"bytes"}}
    expected = "a new folder, or a store of the same text"
    require(same.items() <= description.items(), "out", folder, expected)
    return store
