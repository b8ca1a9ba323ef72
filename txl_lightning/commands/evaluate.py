"""evaluate: measure a checkpoint, as a protocol says."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TextIO

from ..checkpoints.runs import load_training_text, load_with_vocabulary, sha256_of_weights
from ..data.config import DataConfig
from ..data.corpora import CORPORA
from ..data.eval_text import ALL_IS_TEST, EvalText, encode_eval_text
from ..errors import DataError, require
from ..evaluation.protocols import Protocol, get_protocol
from ..evaluation.results import evaluate
from ..evaluation.scoring import TokenNats
from ..evaluation.stats import PerToken
from ..files import check_file_writable
from ..model import TransformerXL
from .device import Device, pick_device

PIPED = "-"
"""The path of what is piped in."""


def evaluate_command(
    ckpt_path: str,
    protocol: str = "segments",
    path: str | None = None,
    corpus: str | None = None,
    split: Literal["train", "val", "test"] = "test",
    document_unit: Literal["none", "files", "lines"] | None = None,
    data_dir: str | None = None,
    per_token: str | None = None,
    out: str | None = None,
    device: Device = None,
    **lengths: Any,
) -> None:
    """Print what a model makes of a text: one line of JSON, and a table on stderr.

    Args:
        ckpt_path: A checkpoint written by fit, or a folder written by convert.
        protocol: How the text is read: segments, single-pass, sliding-window, or as was published:
            paper-, nvidia- or fairseq- and the corpus, with -large for the large models.
        path: The text: a file, a folder or tar of documents, or - for what is piped in, which is
            kept in a temporary file ($TMPDIR); left out, what the checkpoint was trained on.
        corpus: The text by name, in place of path.
        split: Which part of it; your own text is test as a whole, unless names in it say otherwise.
        document_unit: What is a text of its own in path or corpus, before which nothing is seen.
        data_dir: The folder of data; left out, $TXL_DATA, or data, or where the run had it.
        per_token: A .npy file for the nats of every token in input order; nan where not scored.
        out: A file that the line of JSON is added to.
        device: Device of the model; left out, a GPU if there is one.
        **lengths: In place of the protocol's own.
    """
    how = get_protocol(protocol, **lengths)
    check_file_writable("per_token", per_token)
    check_file_writable("out", out)
    model, vocab = load_with_vocabulary(ckpt_path)
    model.to(pick_device(device))
    with TemporaryDirectory(prefix="txl-") as folder, lines(out) as written:
        if path is None and corpus is None:
            require(document_unit is None, "document_unit", document_unit, "path or corpus given")
            text = EvalText.from_store(*load_training_text(ckpt_path, data_dir), split)
        else:
            options = {"document_unit": document_unit, "data_dir": data_dir}
            config = named(path, corpus, Path(folder), **options)
            text = encode_eval_text(config, split, vocab, Path(folder))
        record = scored(model, replace(text, name=path or text.name), how, per_token)
        record |= {"checkpoint": ckpt_path, "checkpoint_sha256": sha256_of_weights(ckpt_path)}
        for file in (sys.stdout, *written):
            print(json.dumps(record, allow_nan=False), file=file)
    print(table(record, how), file=sys.stderr)


def named(path: str | None, corpus: str | None, folder: Path, **options: Any) -> DataConfig:
    """The text that is asked for; what is piped in is kept in `folder`.

    Raises:
        ValueError: there is no such corpus, or both are given.
    """
    if path is None:
        require(corpus in CORPORA, "corpus", corpus, f"one of {', '.join(CORPORA)}")
        return DataConfig(corpus=corpus, **options)
    require(corpus is None, "corpus", corpus, "left out where path is given")
    if path == PIPED:
        path = str(folder / "stdin")
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        if not Path(path).stat().st_size:
            raise DataError("path: -: nothing was piped in; it must be a text")
    return DataConfig(path=path, split=ALL_IS_TEST, **options)


@contextmanager
def lines(path: str | None) -> Iterator[list[TextIO]]:
    """The file that a line is added to, if any; opened before the work that it is to hold."""
    if path is None:
        yield []
        return
    with open(path, "a", encoding="utf-8") as file:
        yield [file]


def scored(
    model: TransformerXL, text: EvalText, how: Protocol, per_token: str | None
) -> dict[str, Any]:
    """The record of an evaluation, with a bar where stderr is a terminal."""
    # Slow to import; --help and a mistake need no bar.
    from rich.console import Console
    from rich.progress import Progress

    n_token = how.stream(text.tokens).end
    kept = [PerToken(Path(per_token), n_token).add] if per_token else []
    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(how.name, total=n_token)

        def advance(part: TokenNats) -> None:
            bar.advance(task, len(part.position_K))

        return evaluate(model, text, how, [*kept, advance])


def table(record: dict[str, Any], how: Protocol) -> str:
    """What a person wants to know of it, what is published of such texts first."""
    interval = record["interval"]
    names = [name for name in interval if name in record]
    names.sort(key=lambda name: not name.startswith(how.unit))
    counts = f"{record['tokens_scored']:,} of {record['tokens']:,} tokens scored"
    changed = f" (but for {', '.join(record['changed'])})" if record["changed"] else ""
    rows = [
        f"{record['protocol']}{changed}: {record['text']}, {record['split']}",
        f"{counts}, {record['cold_starts']:,} cold starts",
    ]
    for name in names:
        between = "  {:.4f} to {:.4f}".format(*interval[name]) if interval[name] else ""
        rows.append(f"{name:>20}  {record[name]:.4f}{between}")
    peak = record["peak_memory_bytes"] / 2**20
    speed = f"{record['tokens_per_second']:,.0f} tokens per second"
    return "\n".join([*rows, f"{record['seconds']:.1f} s, {speed}, {peak:,.0f} MiB at most"])
