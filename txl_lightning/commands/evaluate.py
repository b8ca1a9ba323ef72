"""evaluate: measure a checkpoint on any text, as a protocol says."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from ..checkpoints.runs import find_checkpoint, load_training_text, sha256_of_weights
from ..data.config import DataConfig
from ..data.corpora import CORPORA
from ..data.documents import show_progress
from ..data.store import EvalText
from ..errors import DataError, print_notice, require
from ..evaluation.protocols import Protocol, get_protocol
from ..evaluation.results import evaluate
from ..files import check_file_writable
from ..model import TransformerXL, Weights
from .card import add_result
from .inputs import Device, load_model


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
    weights: Weights = "float32",
    **lengths: Any,
) -> None:
    """Print the loss of a model on a text: a table on stderr, and to a pipe one line of JSON.

    Args:
        ckpt_path: A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.
        protocol: How the text is read: segments, single-pass, sliding-window, or as published:
            paper-, nvidia- or fairseq- and the corpus, with -large for the large models.
        path: A file, a folder or tar of documents, or - for the standard input (copied to $TMPDIR);
            left out, the text of the training.
        corpus: A corpus by name, in place of path.
        split: Part of the text; your own is test as a whole, unless file names in it say otherwise.
        document_unit: Unit of path or corpus before which nothing is visible.
        data_dir: Folder of data; left out, $TXL_DATA, or data, or that of the training.
        per_token: A .npy file for the nats of every token in input order; nan where not scored.
        out: File to append the line of JSON to; /dev/stdout shows it on a terminal.
        device: Device of the model; left out, a GPU if there is one.
        weights: Precision of the layers' weights: bf16 and int8 are faster on a CPU, less exact.
        **lengths: In place of the protocol's own.
    """
    chosen = get_protocol(protocol, **lengths)
    check_file_writable("per_token", per_token)
    check_file_writable("out", out)
    checkpoint = find_checkpoint(ckpt_path)
    model, vocab = load_model(checkpoint, device, weights)
    with TemporaryDirectory(prefix="txl-") as folder:
        if path is None and corpus is None:
            require(document_unit is None, "document_unit", document_unit, "path or corpus given")
            text = EvalText.from_store(*load_training_text(checkpoint, data_dir), split)
        else:
            config = select_text(path, corpus, folder)
            config = replace(config, document_unit=document_unit, data_dir=data_dir)
            text = config.encode_split(split, vocab, Path(folder))
        record = score(model, replace(text, name=path or text.name), chosen, per_token)
    record |= {"checkpoint": str(checkpoint), "checkpoint_sha256": sha256_of_weights(checkpoint)}
    record["weights"] = weights
    print_record(record, chosen.unit, out)
    add_result(checkpoint, record)


def print_record(record: dict[str, Any], unit: str, out: str | None) -> None:
    """Print the table; append JSON to `out`, and print it for the program at the other end."""
    print_notice(format_table(record, unit))
    line = json.dumps(record, allow_nan=False)
    if not sys.stdout.isatty():
        print(line)
    if out is not None:
        with open(out, "a", encoding="utf-8") as file:
            print(line, file=file)


def select_text(path: str | None, corpus: str | None, folder: str) -> DataConfig:
    """Return the text asked for; the standard input is copied into `folder`."""
    if path is None:
        require(corpus in CORPORA, "corpus", corpus, f"one of {', '.join(CORPORA)}")
        return DataConfig(corpus=corpus)
    require(corpus is None, "corpus", corpus, "null with path")
    if path == "-":
        path = f"{folder}/stdin"
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        if not Path(path).stat().st_size:
            raise DataError("path: invalid -; expected a text on the standard input; it is empty")
    return DataConfig(path=path, split=(0.0, 0.0, 1.0))


def score(
    model: TransformerXL, text: EvalText, protocol: Protocol, per_token: str | None
) -> dict[str, Any]:
    n_token, nats_N = protocol.stream(text.tokens).end, None
    if per_token is not None:
        nats_N = np.lib.format.open_memmap(per_token, "w+", np.float32, (n_token,))
        nats_N[:] = np.nan
    with show_progress(protocol.name, n_token, in_bytes=False) as advance:
        return evaluate(model, text, protocol, nats_N, advance)


def format_table(record: dict[str, Any], unit: str) -> str:
    """Return the record for a terminal, the published unit first."""
    interval = record["interval"]
    names = sorted((n for n in interval if n in record), key=lambda name: not name.startswith(unit))
    changed = f" (changed: {', '.join(record['changed'])})" if record["changed"] else ""
    rows = [
        f"{record['protocol']}{changed}: {record['text']}, {record['split']}",
        f"{record['tokens_scored']:,} of {record['tokens']:,} tokens scored, "
        f"{record['cold_starts']:,} cold starts",
    ]
    for name in names:
        between = "  {:.4f} to {:.4f}".format(*interval[name]) if interval[name] else ""
        rows.append(f"{name:>20}  {record[name]:.4f}{between}")
    speed = f"{record['tokens_per_second']:,.0f} tokens per second"
    peak = f"peak memory {record['peak_memory_bytes'] / 2**20:,.0f} MiB"
    return "\n".join([*rows, f"{record['seconds']:.1f} s, {speed}, {peak}"])
