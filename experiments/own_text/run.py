"""From a folder of books to a model: bits of an unseen book by chapter, and a page of its own.

    python -m experiments.own_text.run [--books FOLDER] [--book FILE] [--fast]

The folder has train/, valid/ and test/ with a .txt for each book; left out, novels98 in the data
folder: 98 English novels, no author in two of the three. The book is that of test/ with the most
chapters. With --fast the books are this project's own pages.
"""

import lzma
import math
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments.common import (
    REPOSITORY,
    checkpoint,
    count_parameters,
    curve,
    evaluate,
    fit,
    load_records,
    parse_options,
    save_record,
)
from txl_lightning import generate
from txl_lightning.checkpoints import load_run
from txl_lightning.data.config import DataConfig
from txl_lightning.data.documents import whole_file

OPTIONS = {
    "config": "configs/quickstart.yaml",
    "plan.minutes": None,
    "data.order": "shuffled",
    "data.subwords.train_bytes": 5_000_000,
    "trainer.max_steps": 1500,
    "trainer.val_check_interval": 500,
    "checkpoint.every_n_steps": 500,
}
FAST = {
    "data.vocab": "bytes",
    "data.order": "ordered",
    "data.tgt_len": 16,
    "data.batch_size": 4,
    "trainer.max_steps": 4,
    "trainer.val_check_interval": 4,
    "trainer.limit_val_batches": 2,
}
CHAPTER = re.compile(rb"^ *(?:chapter|## ).*", re.IGNORECASE | re.MULTILINE)
PAGE_LEN, PROMPT_LEN = 400, 300
"""Tokens of the page, and of the book before it: a memory that is nearly empty is rare."""


def main() -> None:
    """Train, score the book with the memory and without, sample."""
    given = parse_options(__file__, __doc__, (1,), books="folder of books", book="book to score")
    books = Path(given.books or DataConfig().data_folder / "novels98")
    if given.fast and not given.books:
        books = copy_pages(given.runs / "books")
    for seed in given.seeds:
        if (name := f"seed {seed}") not in load_records(given.out):
            options = {"data.path": str(books), "trainer.precision": given.precision}
            options = OPTIONS | options | {"seed_everything": seed} | (FAST if given.fast else {})
            folder = fit(given.runs / f"seed_{seed}", options)
            book = Path(given.book) if given.book else find_book(books / "test")
            about = {"kind": "book", "seed": seed, "options": options, "book": book.name}
            save_record(given, name, **about, **measure(folder, book))


def copy_pages(folder: Path) -> Path:
    """Return a folder of three short books: pages of this repository."""
    pages = {"train": "CONTRIBUTING.md", "valid": "configs/README.md", "test": "README.md"}
    for split, page in pages.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / page, folder / split / "page.txt")
    return folder


def find_book(folder: Path) -> Path:
    """Return the book with the most chapters."""
    return max(sorted(folder.glob("*.txt")), key=lambda path: len(find_chapters(path)))


def find_chapters(book: Path) -> list[tuple[str, int, int]]:
    """Return headings and bytes, from and to; what is before the first heading is one, too."""
    text = book.read_bytes()
    found = [(match[0].decode().strip(), match.start()) for match in CHAPTER.finditer(text)]
    if not found or found[0][1]:
        found = [("before", 0), *found]
    ends = [start for _, start in found[1:]] + [len(text)]
    return [(name, start, end) for (name, start), end in zip(found, ends, strict=True)]


def measure(folder: Path, book: Path) -> dict[str, Any]:
    """Return what a run's model knows of a book, chapter by chapter, and how it goes on."""
    path = checkpoint(folder, "last")
    model, vocab = load_run(path)
    ids = np.concatenate(list(vocab.encode(whole_file(book)[0])))
    end_N = vocab.token_bytes()[ids].cumsum()
    text, tests, chapters = book.read_bytes(), {}, {}
    for mem_len in (0, model.config.mem_len):
        tests[str(mem_len)], nats_N = score_book(path, book, mem_len)
        chapters[str(mem_len)] = bits_by_chapter(nats_N, end_N, find_chapters(book))
    return {
        "parameters": count_parameters(path),
        "curve": curve(folder, "val/bits_per_byte"),
        "book_bytes": len(text),
        "xz_bits_per_byte": 8 * len(lzma.compress(text, preset=9)) / len(text),
        "bits_per_byte_by_mem_len": tests,
        "chapters": [name for name, _, _ in find_chapters(book)],
        "chapter_bits_by_mem_len": chapters,
        **sample_page(model, vocab, ids),
    }


def score_book(path: Path, book: Path, mem_len: int) -> tuple[float, np.ndarray]:
    """Return bits per byte of a book, and the nats of its tokens (0 of the first)."""
    with TemporaryDirectory() as folder:
        nats = Path(folder) / "nats.npy"
        how = {"path": str(book), "mem_len": mem_len, "tgt_len": 64, "per_token": str(nats)}
        record = evaluate(path, how)
        return record["bits_per_byte"], np.nan_to_num(np.load(nats))


def bits_by_chapter(
    nats_N: np.ndarray, end_N: np.ndarray, chapters: list[tuple[str, int, int]]
) -> list[float]:
    """Return bits per byte of each chapter; a token belongs to that in which it ends."""
    bits = []
    for _, start, end in chapters:
        first, last = np.searchsorted(end_N, (start, end), side="right")
        bits.append(float(nats_N[first:last].sum() / math.log(2) / (end - start)))
    return bits


def sample_page(model: Any, vocab: Any, ids: np.ndarray) -> dict[str, str]:
    """Return the end of a beginning of the book, and how the model goes on."""
    prompt = torch.from_numpy(ids[:PROMPT_LEN].astype("int64"))
    page = generate(model, prompt, PAGE_LEN, temperature=0.8, top_p=0.95, seed=1)
    return {"prompt": vocab.decode(prompt[-60:].tolist()), "page": vocab.decode(page.tolist())}


if __name__ == "__main__":
    main()
