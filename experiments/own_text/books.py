"""Books and their chapters."""

import math
import re
import shutil
from pathlib import Path

import numpy as np

from experiments.common import REPOSITORY

CHAPTER = re.compile(rb"^ *(?:chapter|## ).*", re.IGNORECASE | re.MULTILINE)


def copy_pages(folder: Path) -> Path:
    """Write pages of this repository as three books, and return their folder."""
    pages = {"train": "CONTRIBUTING.md", "valid": "configs/README.md", "test": "README.md"}
    for split, page in pages.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / page, folder / split / "page.txt")
    return folder


def find_book(folder: Path) -> Path:
    """Return the book with the most chapters."""
    return max(sorted(folder.glob("*.txt")), key=lambda path: len(find_chapters(path)))


def find_chapters(book: Path) -> list[tuple[str, int, int]]:
    """Return heading, first byte and end of each chapter; "before" is the part before the first."""
    text = book.read_bytes()
    headings = [(match[0].decode().strip(), match.start()) for match in CHAPTER.finditer(text)]
    if not headings or headings[0][1]:
        headings = [("before", 0), *headings]
    ends = [start for _, start in headings[1:]] + [len(text)]
    return [(name, start, end) for (name, start), end in zip(headings, ends, strict=True)]


def bits_by_chapter(
    nats_N: np.ndarray, end_N: np.ndarray, chapters: list[tuple[str, int, int]]
) -> list[float]:
    """Return bits per byte of each chapter; a token counts in the chapter where it ends."""
    bits = []
    for _, start, end in chapters:
        first, last = np.searchsorted(end_N, (start, end), side="right")
        bits.append(float(nats_N[first:last].sum() / math.log(2) / (end - start)))
    return bits
