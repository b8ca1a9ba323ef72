"""From a folder of books to a model: bits of an unseen book by chapter, and a sampled page.

    python -m experiments.own_text.run [--books FOLDER] [--book FILE] [--fast]

FOLDER has train/, valid/ and test/ with one .txt file per book. The default is novels98 in the data
folder: 98 English novels; no author is in two of the three. FILE is the scored book, by default the
one of test/ with the most chapters. With --fast the books are pages of this project.
"""

import lzma
import math
import re
import shutil
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments import common
from txl_lightning import TransformerXL, generate
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
"""Tokens of the sampled page, and of its prompt, which fills the memory."""


def main() -> None:
    """Train with each seed, score the book with and without memory, and sample a page."""
    more = {"books": "folder of books", "book": "book to score"}
    args = common.parse_args(__file__, __doc__, (1,), **more)
    books = Path(args.books or DataConfig().data_folder / "novels98")
    if args.fast and not args.books:
        books = copy_pages(args.runs / "books")
    book = Path(args.book) if args.book else find_book(books / "test")
    for seed in args.seeds:
        common.measure_once(args, f"seed {seed}", train_and_measure, args, seed, books, book)


def train_and_measure(args: Namespace, seed: int, books: Path, book: Path) -> dict[str, Any]:
    options = {"data.path": str(books), "trainer.precision": args.precision}
    options = OPTIONS | options | {"seed_everything": seed} | (FAST if args.fast else {})
    found = {"kind": "book", "seed": seed, "options": options, "book": book.name}
    return found | measure(common.fit(args.runs / f"seed_{seed}", options), book)


def copy_pages(folder: Path) -> Path:
    """Write pages of this repository as three books, and return their folder."""
    pages = {"train": "CONTRIBUTING.md", "valid": "configs/README.md", "test": "README.md"}
    for split, page in pages.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        shutil.copy(common.REPOSITORY / page, folder / split / "page.txt")
    return folder


def find_book(folder: Path) -> Path:
    """Return the book with the most chapters."""
    return max(sorted(folder.glob("*.txt")), key=lambda path: len(find_chapters(path)))


def find_chapters(book: Path) -> list[tuple[str, int, int]]:
    """Return heading, first byte and end of each chapter; "before" is the part before the first."""
    text = book.read_bytes()
    found = [(match[0].decode().strip(), match.start()) for match in CHAPTER.finditer(text)]
    if not found or found[0][1]:
        found = [("before", 0), *found]
    ends = [start for _, start in found[1:]] + [len(text)]
    return [(name, start, end) for (name, start), end in zip(found, ends, strict=True)]


def measure(run: Path, book: Path) -> dict[str, Any]:
    """Return a run's bits per byte of a book, whole and by chapter, and a sampled page."""
    path = common.checkpoint(run)
    model, vocab = load_run(path)
    ids = np.concatenate(list(vocab.encode(whole_file(book)[0])))
    end_N = vocab.token_bytes()[ids].cumsum()
    text, tests, chapters = book.read_bytes(), {}, {}
    for mem_len in (0, model.config.mem_len):
        tests[str(mem_len)], nats_N = score_book(path, book, mem_len)
        chapters[str(mem_len)] = bits_by_chapter(nats_N, end_N, find_chapters(book))
    return {
        "parameters": common.count_parameters(model),
        "curve": common.load_curve(run, "val/bits_per_byte"),
        "book_bytes": len(text),
        "xz_bits_per_byte": 8 * len(lzma.compress(text, preset=9)) / len(text),
        "bits_per_byte_by_mem_len": tests,
        "chapters": [name for name, _, _ in find_chapters(book)],
        "chapter_bits_by_mem_len": chapters,
        **sample_page(model, vocab, ids),
    }


def score_book(path: Path, book: Path, mem_len: int) -> tuple[float, np.ndarray]:
    """Return bits per byte of a book, and the nats of each token (0 for the first)."""
    with TemporaryDirectory() as folder:
        nats = Path(folder) / "nats.npy"
        how = {"path": str(book), "mem_len": mem_len, "tgt_len": 64, "per_token": str(nats)}
        record = common.evaluate(path, how)
        return record["bits_per_byte"], np.nan_to_num(np.load(nats))


def bits_by_chapter(
    nats_N: np.ndarray, end_N: np.ndarray, chapters: list[tuple[str, int, int]]
) -> list[float]:
    """Return bits per byte of each chapter; a token counts in the chapter where it ends."""
    bits = []
    for _, start, end in chapters:
        first, last = np.searchsorted(end_N, (start, end), side="right")
        bits.append(float(nats_N[first:last].sum() / math.log(2) / (end - start)))
    return bits


def sample_page(model: TransformerXL, vocab: Any, ids: np.ndarray) -> dict[str, str]:
    """Return the end of the prompt, the book's first tokens, and the page sampled after it."""
    prompt = torch.from_numpy(ids[:PROMPT_LEN].astype("int64"))
    page = generate(model, prompt, PAGE_LEN, temperature=0.8, top_p=0.95, seed=1)
    return {"prompt": vocab.decode(prompt[-60:].tolist()), "page": vocab.decode(page.tolist())}


if __name__ == "__main__":
    main()
