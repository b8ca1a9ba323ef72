"""The texts, and the one that was tuned on by nobody: SQLite's source in one file.

    pip download --no-deps --no-binary :all: sqlean.py==3.50.4.5
    python -m experiments.stop_gradient.texts sqlean_py-3.50.4.5.tar.gz

writes it to the data folder (TXL_DATA); another text than the chosen one is refused.
"""

import hashlib
import sys
import tarfile
from pathlib import Path
from typing import Any

from experiments.novels.texts import find_novels
from txl_lightning.data.corpora import ENWIK8, place_file
from txl_lightning.data.sources import DataConfig
from txl_lightning.errors import DataError
from txl_lightning.files import replace_file

MEMBER = "sqlean_py-3.50.4.5/sqlite/sqlite3.c"
CHECKSUM = "249f645fe3af6386d8e7560994268fac27f51f19a47fd7d7030c9830543bb54e"
PREFIX = 4_154_064  # bytes
SUBWORDS = {"data.vocab": "bpe", "data.subwords.n_token": 4096}
NAMES = ("python_source", "enwik8_prefix", "novels", "sqlite")
"""In the order of training: the last one is opened when nothing is left to be tuned by it."""
RATES_OF = {"sqlite": "python_source"}
"""The text by whose validation a text's rates are chosen, if it is another one."""


def choose_text(name: str) -> dict[str, Any]:
    """Return the options of a text and its vocabulary; DataError if it is missing."""
    if name == "python_source":
        return {"data.corpus": name} | SUBWORDS
    if name == "enwik8_prefix":
        return {"data.path": str(find_prefix()), "data.vocab": "bytes"}
    if name == "novels":
        learned = {"data.subwords.train_bytes": 5_000_000}
        return {"data.path": str(find_novels())} | SUBWORDS | learned
    return {"data.path": str(find_sqlite())} | SUBWORDS


def find_prefix() -> Path:
    """Return the file of the first bytes of enwik8, cut from it if it is missing or shorter."""
    folder = DataConfig().data_folder
    path = folder / "enwik8_prefix.txt"
    if not path.is_file() or path.stat().st_size != PREFIX:
        [whole] = place_file(ENWIK8, folder / "enwik8")
        with whole.open("rb") as file:
            text = file.read(PREFIX)
        replace_file(path, lambda part: part.write_bytes(text))
    return path


def find_sqlite() -> Path:
    path = DataConfig().data_folder / "sqlite3.txt"
    if not path.is_file():
        how = "experiments/stop_gradient/texts.py says where to get it"
        raise DataError(f"{path}: missing; {how}; the data folder is TXL_DATA")
    return path


def extract_sqlite(archive: Path, path: Path) -> None:
    """Write the text in a source archive to a file."""
    with tarfile.open(archive) as files:
        text = files.extractfile(MEMBER).read()
    if hashlib.sha256(text).hexdigest() != CHECKSUM:
        raise DataError(f"{archive}: not the text that was chosen")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda part: part.write_bytes(text))


if __name__ == "__main__":
    extract_sqlite(Path(sys.argv[1]), DataConfig().data_folder / "sqlite3.txt")
