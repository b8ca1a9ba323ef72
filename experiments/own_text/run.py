"""From a folder of books to a model: bits of an unseen book by chapter, and a sampled page.

    python -m experiments.own_text.run [--books FOLDER] [--book FILE] [--fast]

FOLDER has train/, valid/ and test/ with one .txt file per book. The default is novels98 in the data
folder: 98 English novels; no author is in two of the three. FILE is the scored book, by default the
one of test/ with the most chapters. With --fast the books are pages of this project.
"""

from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments import common
from experiments.own_text.books import bits_by_chapter, copy_pages, find_book, find_chapters
from txl_lightning import CorpusDataModule, generate
from txl_lightning.data.documents import whole_file
from txl_lightning.data.settings import DataConfig
from txl_lightning.files import load_yaml

OPTIONS = {
    "config": "configs/quickstart.yaml",
    "plan.minutes": None,
    "data.order": "shuffled",
    "data.subwords.train_bytes": 5_000_000,
    "trainer.max_steps": 1500,
    "trainer.val_check_interval": 500,
    "checkpoint.every_n_steps": 500,
}
FAST = common.FAST | {"data.order": "ordered", "data.tgt_len": 16, "data.batch_size": 4}
PAGE_LEN, PROMPT_LEN = 400, 300
"""Tokens of the sampled page, and of its prompt, which fills the memory."""


def main() -> None:
    """Train with each seed, score the book with and without memory, and sample a page."""
    more = {"books": "folder of books", "book": "book to score"}
    args = common.parse_args(__file__, __doc__, (1,), vary="weights", **more)
    books = Path(args.books or DataConfig().data_folder / "novels98")
    if args.fast and not args.books:
        books = copy_pages(args.runs / "books")
    book = Path(args.book) if args.book else find_book(books / "test")
    common.measure_once(args, "xz", measure_xz, books, book)
    for seed in args.seeds:
        common.measure_once(args, f"seed {seed}", train_and_measure, seed, books, book)


def train_and_measure(args: Namespace, seed: int, books: Path, book: Path) -> dict[str, Any]:
    run = common.train(args, f"seed {seed}", seed, choose_options(args, books))
    return {"kind": "book", "seed": seed, "book": book.name} | measure(run, book)


def choose_options(args: Namespace, books: Path) -> dict[str, Any]:
    return OPTIONS | {"data.path": str(books)} | (FAST if args.fast else {})


def measure_xz(args: Namespace, books: Path, book: Path) -> dict[str, Any]:
    """Return xz's bits per byte of a book: alone, after what the model has read, and after all."""
    train = b"".join(path.read_bytes() for path in sorted((books / "train").glob("*.txt")))
    text, read = read_training_text(choose_options(args, books))
    bits = common.compress(book.read_bytes(), read)
    return {
        "kind": "xz",
        "book": book.name,
        "text": text,
        "bytes": book.stat().st_size,
        "read_bytes": len(read),
        "train_bytes": len(train),
        "alone": bits["alone"],
        "read": bits["after"],
        "after": common.compress(book.read_bytes(), train)["after"],
    }


def read_training_text(options: dict[str, Any]) -> tuple[str, bytes]:
    """Return the checksum of the books, and the text of all segments of training, row by row."""
    settings = load_yaml((common.REPOSITORY / options["config"]).read_text())["data"]
    changes = {
        key.removeprefix("data."): options[key] for key in options if key.startswith("data.")
    }
    settings["subwords"]["train_bytes"] = changes.pop("subwords.train_bytes")
    settings |= changes
    if settings["vocab"] != "bpe":
        del settings["subwords"]
    data = CorpusDataModule(**settings)
    stream, steps = data.train_dataloader().stream, options["trainer.max_steps"]
    tokens_BT = torch.cat([stream.segment(n).tokens_BL for n in range(steps)], dim=1)
    read = "".join(map(data.vocab.decode, tokens_BT.tolist())).encode()
    return data.store.manifest["text"], read


def measure(run: common.TrainedRun, book: Path) -> dict[str, Any]:
    """Return a run's bits per byte of a book, whole and by chapter, and a sampled page."""
    ids = np.concatenate(list(run.vocab.encode(whole_file(book)[0])))
    end_N = run.vocab.token_bytes()[ids].cumsum()
    whole, by_chapter, chapters = {}, {}, find_chapters(book)
    for mem_len in (0, run.net.config.mem_len):
        whole[str(mem_len)], nats_N = score_book(run, book, mem_len)
        by_chapter[str(mem_len)] = bits_by_chapter(nats_N, end_N, chapters)
    return run.describe("val/bits_per_byte") | {
        "book_bytes": book.stat().st_size,
        "bits_per_byte_by_mem_len": whole,
        "chapters": [name for name, _, _ in chapters],
        "chapter_bits_by_mem_len": by_chapter,
        **sample_page(run, ids),
    }


def score_book(run: common.TrainedRun, book: Path, mem_len: int) -> tuple[float, np.ndarray]:
    """Return bits per byte of a book, and the nats of each token (0 for the first)."""
    with TemporaryDirectory() as folder:
        nats = Path(folder) / "nats.npy"
        how = {"path": str(book), "mem_len": mem_len, "tgt_len": 64, "per_token": str(nats)}
        return run.evaluate(how)["bits_per_byte"], np.nan_to_num(np.load(nats))


def sample_page(run: common.TrainedRun, ids: np.ndarray) -> dict[str, str]:
    """Return the end of the prompt, the book's first tokens, and the page sampled after it."""
    prompt = torch.from_numpy(ids[:PROMPT_LEN].astype("int64"))
    page = generate(run.net, prompt, PAGE_LEN, temperature=0.8, top_p=0.95, seed=1).tolist()
    return {"prompt": run.vocab.decode(prompt[-60:].tolist()), "page": run.vocab.decode(page)}


if __name__ == "__main__":
    main()
