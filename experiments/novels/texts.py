"""Make the folder novels98 in the data folder (TXL_DATA), of the files that novels98.tsv lists.

    git clone https://github.com/computationalstylistics/100_english_novels
    python -m experiments.novels.texts 100_english_novels/corpus

Byte order marks, carriage returns and form feeds are removed; another text than the one that was
measured is refused.
"""

import csv
import hashlib
import sys
from pathlib import Path

from txl_lightning.data.sources import DataConfig
from txl_lightning.errors import DataError
from txl_lightning.files import create_folder

TABLE = Path(__file__).with_name("novels98.tsv")


def copy_novels(source: Path, folder: Path) -> None:
    """Write the novels in `source`, cleaned, as folder/SPLIT/FILE: all of them, or none."""
    create_folder(folder, lambda part: write_novels(source, part))


def write_novels(source: Path, folder: Path) -> None:
    for row in csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t"):
        text = (source / row["file"]).read_bytes()
        clean = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b"").replace(b"\f", b"")
        if hashlib.sha256(clean).hexdigest() != row["sha256"]:
            raise DataError(f"{source / row['file']}: not the text that was measured")
        (folder / row["split"]).mkdir(parents=True, exist_ok=True)
        (folder / row["split"] / row["file"]).write_bytes(clean)


def find_novels() -> Path:
    """Return the folder novels98; DataError if it is missing."""
    folder = DataConfig().data_folder / "novels98"
    if not folder.is_dir():
        how = "experiments/novels/texts.py says where to get it; the data folder is TXL_DATA"
        raise DataError(f"{folder}: missing; {how}")
    return folder


if __name__ == "__main__":
    copy_novels(Path(sys.argv[1]), DataConfig().data_folder / "novels98")
