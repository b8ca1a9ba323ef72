"""The texts that are read, of which nobody here has looked at a result before: Django's source.

    pip download --no-deps --no-binary :all: django==5.2.8
    python -m experiments.test_time.texts django-5.2.8.tar.gz

writes them to the data folder (TXL_DATA): the first bytes of the files of a folder, by name.
"""

import hashlib
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

from txl_lightning.data.sources import DataConfig
from txl_lightning.errors import DataError
from txl_lightning.files import replace_file

N_BYTE = 400_000
INDEX = b"Class-based generic views - flattened index"
"""Title of a file of the documentation, between two lines: of names alone, without sentences."""


class Part(NamedTuple):
    """Files of the archive, and the sha256 of their first N_BYTE together."""

    prefix: str
    suffix: str
    sha256: str


PARTS = {
    "django_code": Part(
        "django-5.2.8/django/db/",
        ".py",
        "47f0915289187ae230f176a8d8515cb69259bd08ba6c6c2a91dd5510dcdd0b50",
    ),
    "django_docs": Part(
        "django-5.2.8/docs/ref/",
        ".txt",
        "f126d546d2a862e34ab1f8a7b109a636c18cecc54f0bf86bc82d7b400bd2dc3e",
    ),
}


def find_text(name: str) -> Path:
    """Return the file of a text; DataError if it is missing."""
    path = DataConfig().data_folder / f"{name}.txt"
    if not path.is_file():
        how = "experiments/test_time/texts.py says where to get it"
        raise DataError(f"{path}: missing; {how}; the data folder is TXL_DATA")
    return path


def find_index(text: bytes) -> int:
    """Return the place of the first byte of the index in the documentation."""
    return text.index(b"=" * len(INDEX) + b"\n" + INDEX)


def extract_text(archive: Path, part: Part, path: Path) -> None:
    """Write a part of the archive to a file; DataError if it is another text than was chosen."""
    with tarfile.open(archive) as files:
        names = [name for name in files.getnames() if name.startswith(part.prefix)]
        names = sorted(name for name in names if name.endswith(part.suffix))
        text = b"".join(files.extractfile(name).read() for name in names)[:N_BYTE]
    if hashlib.sha256(text).hexdigest() != part.sha256:
        raise DataError(f"{archive}: not the text that was chosen")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda new: new.write_bytes(text))


if __name__ == "__main__":
    for name, part in PARTS.items():
        extract_text(Path(sys.argv[1]), part, DataConfig().data_folder / f"{name}.txt")
