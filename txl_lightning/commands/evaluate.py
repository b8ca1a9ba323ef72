"""evaluate: measure a checkpoint on any text, with a protocol."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from ..checkpoints import LoadedCheckpoint
from ..data.corpora import CORPORA
from ..data.json_lines import LineFormat
from ..data.sources import SOURCES, DataConfig
from ..data.store import EvalText
from ..data.tokens import TextTokens
from ..data.vocab import Vocabulary
from ..errors import DataError, invalid, print_notice, require
from ..evaluation.documents import write_documents
from ..evaluation.protocols import Protocol, get_protocol
from ..evaluation.published import compare_published, format_published
from ..evaluation.scoring import check_graph, evaluate
from ..evaluation.tuning import SECONDS, Choice, Limit, choose_adaptation, measure_rms
from ..files import explain_write_errors, replace_file
from ..model import Network, Weights
from ..model.adaptation import Adaptation
from ..terminal import is_stdout, show_progress
from .given_texts import STDIN, copy_stdin, find_kind, name_stdin
from .inputs import Device, check_outputs, find_id_options, find_text_key, load_model


@dataclass(frozen=True)
class ModelOptions:
    """Device and precision of the network, and how its operations are started."""

    device: Device = None
    """Device of the model; left out, a GPU if there is one."""
    weights: Weights = "float32"
    """Precision of weights, keys and values: bf16 is faster on a CPU, less exact."""
    cuda_graph: bool = False
    """Compute each segment as one CUDA graph, to be launched at once; not run on a GPU yet."""


@dataclass(frozen=True)
class AutoOptions:
    """Whether, and for how long, an adaptation is chosen."""

    adapt: Literal["auto"] | None = None
    """auto chooses cache and rate, unless given, on the validation text of training."""
    adapt_seconds: float | None = None
    """Time in which auto chooses; left out, 90."""
    adapt_tokens: int | None = None
    """Tokens by which auto chooses, whatever the time: equal on any machine."""


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(LineFormat):
    """Settings by which a path or corpus is read.

    Args:
        document_unit: Unit of path or corpus that is read without context from before it.
    """

    document_unit: Literal["none", "files", "lines"] | None = None


def evaluate_command(
    ckpt_path: str,
    protocol: str = "segments",
    path: str | None = None,
    corpus: str | None = None,
    split: Literal["train", "val", "test"] = "test",
    data_dir: str | None = None,
    per_token: str | None = None,
    per_document: str | None = None,
    out: str | None = None,
    how: ModelOptions = ModelOptions(),
    reading: ReadingOptions = ReadingOptions(),
    auto: AutoOptions = AutoOptions(),
    adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
    **lengths: Any,
) -> None:
    """Print the loss of a model on a text: a table on stderr, and in a pipe one line of JSON.

    Args:
        ckpt_path: A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.
        protocol: How the text is read: segments, single-pass, sliding-window, or as published:
            paper-, nvidia- or fairseq- and the corpus, with -large for the large models. On the
            test text of that corpus, the last line says whether the published result is reached.
        path: A file, a folder or tar of documents, or - for the standard input (copied to $TMPDIR);
            ids (.npy, .bin, .ds; as in training), or a store; left out, the text of the training.
        corpus: A corpus by name, instead of path.
        split: Part of the text; all of your own text is test, unless names of files in it differ.
        data_dir: Folder of data; left out, $TXL_DATA, or data, or that of the training.
        per_token: File (.npy) for the nats of every token in input order; nan where not scored.
        per_document: File (.jsonl) for the nats and the most surprising token of each document.
        out: File to append the line of JSON to; /dev/stdout prints it also on a terminal.
        how: How the network is computed; each of its fields is an option.
        reading: How path or corpus is read; each of its fields is an option.
        auto: How an adaptation is chosen; each of its fields is an option.
        adaptation: What is learned from the text; each of its fields is an option.
        **lengths: Values that replace those of the protocol.
    """
    settings = make_protocol(protocol, **lengths)
    settings = replace(settings, adaptation=adaptation, cuda_graph=how.cuda_graph)
    limit = make_limit(auto, settings)
    check_outputs(per_token, per_document, out)
    trains = bool(auto.adapt or adaptation.rate)
    checkpoint, model, vocab = load_model(ckpt_path, how.device, how.weights, trains)
    check_graph(model, settings)  # before a text is read
    with TemporaryDirectory(prefix="txl-") as folder:
        text = open_text(checkpoint, vocab, split, reading, folder, path, corpus, data_dir)
        settings, chosen = adapt_protocol(settings, model, checkpoint, limit, text, data_dir)
        record = run_protocol(model, text, settings, per_token, per_document)
    record |= {"weights": how.weights, "cuda_graph": how.cuda_graph, "adapt": chosen}
    print_record(record, checkpoint, settings, out)


def make_protocol(name: str, **lengths: Any) -> Protocol:
    """Return a protocol with other lengths, which are those of a window or a memory's."""
    protocol = get_protocol(name, **lengths)
    is_window = lengths.get("window") is not None
    expected = "0 with window, which sees only its own tokens"
    require(not is_window or protocol.mem_len == 0, "mem_len", protocol.mem_len, expected)
    return protocol


def open_text(
    checkpoint: LoadedCheckpoint,
    vocab: Vocabulary,
    split: str,
    reading: ReadingOptions,
    folder: str,
    path: str | None,
    corpus: str | None,
    data_dir: str | None,
) -> EvalText:
    """Return a split of the checkpoint's text, or else of a path or corpus."""
    options = asdict(reading)
    if path is None and corpus is None:
        for key, value in options.items():
            require(value in (None, False), key, value, "path or corpus given")
        text = EvalText.from_store(*checkpoint.open_text(data_dir), split)
        return replace(text, corpus=find_corpus(checkpoint.data_settings))
    with name_stdin(folder):
        config = select_text(path, corpus, folder, data_dir, **options)
        text = encode_text(config, checkpoint, vocab, split, folder)
    return replace(text, name=path or text.name, corpus=corpus)


def encode_text(
    config: DataConfig, checkpoint: LoadedCheckpoint, vocab: Vocabulary, split: str, folder: str
) -> EvalText:
    """Return a split of a text in the vocabulary of the checkpoint; refuse settings that have no
    effect on it."""
    for key, reason in config.list_unused().items():
        raise invalid(key, getattr(config, key), f"null, because {reason}")
    config = replace(config, id_options=find_id_options(checkpoint)) if config.ids else config
    if config.path and config.text_key is None:
        text_key = find_text_key(checkpoint, Path(config.path), config.data_folder)
        config = replace(config, text_key=text_key)
    return config.source.encode(split, vocab, Path(folder))


def find_corpus(settings: Mapping[str, Any]) -> str | None:
    """Return the corpus that settings of data choose; None if they name a text otherwise."""
    is_other = any(settings.get(name) is not None for name in SOURCES)
    return None if is_other else settings.get("corpus", DataConfig.corpus)


def make_limit(auto: AutoOptions, protocol: Protocol) -> Limit | None:
    """Return how long auto chooses, or None if nothing is chosen; refuse what has no effect."""
    for key in ("adapt_seconds", "adapt_tokens"):
        value = getattr(auto, key)
        require(auto.adapt is not None or value is None, key, value, "null without adapt auto")
    tokens = auto.adapt_tokens
    is_one = tokens is None or auto.adapt_seconds is None
    require(is_one, "adapt_tokens", tokens, "null with adapt_seconds")
    if auto.adapt is None:
        protocol.adaptation.require_used()
        return None
    require(not protocol.cuda_graph, "cuda_graph", "true", "false with adapt, cache_len or rate")
    if tokens is not None:
        return Limit(tokens=tokens)
    return Limit(SECONDS if auto.adapt_seconds is None else auto.adapt_seconds)


def scale_steps(
    protocol: Protocol, model: Network, checkpoint: LoadedCheckpoint, data_dir: str | None
) -> Protocol:
    """Return the protocol with the RMS of gradients on the training text, if steps need it."""
    n_token = protocol.adaptation.rms_tokens
    if n_token is None:
        return protocol
    try:
        text = EvalText.from_store(*checkpoint.open_text(data_dir), "train")
    except DataError as error:
        raise DataError(f"rms_tokens: invalid {n_token}; expected null: {error}") from error
    print_notice(f"rms_tokens: reading {n_token:,} tokens of the training text")
    return replace(protocol, adaptation=measure_rms(model, text.tokens, protocol))


def adapt_protocol(
    protocol: Protocol,
    model: Network,
    checkpoint: LoadedCheckpoint,
    limit: Limit | None,
    text: EvalText,
    data_dir: str | None,
) -> tuple[Protocol, dict[str, Any] | None]:
    """Return the protocol with what is best for the validation text of training, and how it was
    chosen; print both. Without a limit nothing is chosen."""
    protocol = scale_steps(protocol, model, checkpoint, data_dir)
    if limit is None:
        return protocol, None
    try:
        val = EvalText.from_store(*checkpoint.open_text(data_dir), "val")
    except DataError as error:
        fix = "give cache_len and rate"
        raise DataError(f"adapt: auto needs the validation text of training; {fix}") from error
    many = f"for at most {limit.seconds:g} seconds"
    many = many if limit.tokens is None else f"up to {limit.tokens:,} tokens"
    print_notice(f"adapt auto: reading the validation text {many}")
    began = time.perf_counter()
    choice = choose_adaptation(model, val.tokens, protocol, limit)
    record = describe_choice(choice, val, text) | {"seconds": time.perf_counter() - began}
    print_notice(f"adapt auto: {choice.adaptation.describe() or 'nothing helps'}")
    for name in choice.edges:
        value = f"{name} {getattr(choice.adaptation, name):g}"
        print_notice(f"adapt auto: {value} is at the edge of the values tried")
    if record["is_reported"]:
        print_notice("warning: adapt auto chooses on the text that is reported")
    return replace(protocol, adaptation=choice.adaptation), record


def describe_choice(choice: Choice, val: EvalText, text: EvalText) -> dict[str, Any]:
    """Return what was chosen, and on which text, as plain values."""
    is_reported = (val.fingerprint, val.split) == (text.fingerprint, text.split)
    texts = val.tokens, text.tokens
    if not is_reported and all(isinstance(each, TextTokens) for each in texts):
        # Another file may have the same text.
        is_reported = np.array_equal(*(each.ids for each in texts))
    where = {"text": val.name, "split": val.split, "fingerprint": val.fingerprint}
    values = {"values": choice.adaptation.fill().given, "edges": choice.edges}
    return where | {"is_reported": is_reported, "tokens": choice.tokens} | values


def print_record(
    record: dict[str, Any], checkpoint: LoadedCheckpoint, protocol: Protocol, out: str | None
) -> None:
    """Print a record, as a table on stderr and in a pipe as JSON; add it to the file `out`."""
    record |= {"checkpoint": str(checkpoint.path), "checkpoint_sha256": checkpoint.sha256}
    record["published"] = compare_published(record, protocol)
    trained = checkpoint.config, checkpoint.trained_len
    if notice := protocol.describe_new_distances(*trained, record["tokens"]):
        print_notice(notice)
    print_notice(format_table(record, protocol.unit))
    line = json.dumps(record, allow_nan=False)
    if not (sys.stdout.isatty() or is_stdout(out)):
        print(line)
    if out is not None:
        with explain_write_errors(Path(out)), open(out, "a", encoding="utf-8") as file:
            print(line, file=file)


def select_text(
    path: str | None, corpus: str | None, folder: str, data_dir: str | None, **options: Any
) -> DataConfig:
    """Return the text of a path or corpus; copy the standard input into `folder`."""
    if path is None:
        require(corpus in CORPORA, "corpus", corpus, f"one of {', '.join(CORPORA)}")
        return DataConfig(corpus=corpus, data_dir=data_dir, **options)
    require(corpus is None, "corpus", corpus, "null with path")
    if path == "-":
        # Refuses settings before it is read.
        DataConfig(path=STDIN, **options)
        path = copy_stdin("path", folder)
        # What is unpacked of it goes with it.
        data_dir = folder
    config = DataConfig(**{find_kind(Path(path)): path}, data_dir=data_dir, **options)
    return config.put_all_in_test()


def run_protocol(
    model: Network,
    text: EvalText,
    protocol: Protocol,
    per_token: str | None,
    per_document: str | None,
) -> dict[str, Any]:
    """Return the record of a text, and write the files that were asked for."""
    if per_document is not None and per_token is None:
        # On disk, because a text may be longer than memory.
        with TemporaryDirectory(prefix="txl-") as folder:
            return run_protocol(model, text, protocol, f"{folder}/nats.npy", per_document)
    is_text = isinstance(text.tokens, TextTokens)
    require(is_text or not per_document, "per_document", per_document, "null, as it is a task")
    n_token = protocol.stream(text.tokens).end
    with show_progress(protocol.name, n_token, in_bytes=False) as advance:
        if per_token is None:
            return evaluate(model, text, protocol, None, advance)

        def write_nats(part: Path) -> dict[str, Any]:
            nats_N = np.lib.format.open_memmap(part, "w+", np.float32, (n_token,))
            nats_N[:] = np.nan
            record = evaluate(model, text, protocol, nats_N, advance)
            if per_document is not None:
                replace_file(Path(per_document), partial(write_documents, text, nats_N))
            return record

        return replace_file(Path(per_token), write_nats)


def format_table(record: dict[str, Any], unit: str) -> str:
    """Return the record as text for a terminal, the published unit first."""
    intervals = record["interval"]
    names = [name for name in intervals if name in record]
    changed = f" (changed: {', '.join(record['changed'])})" if record["changed"] else ""
    rows = [
        f"{record['protocol']}{changed}: {record['text']}, {record['split']}",
        f"{record['tokens_scored']:,} of {record['tokens']:,} tokens scored, "
        f"{record['cold_starts']:,} cold start{'s' * (record['cold_starts'] != 1)}",
    ]
    if record["adaptation"]:
        rows.append(f"adapted with {Adaptation(**record['adaptation']).describe()}")
    if chosen := record.get("adapt"):
        rows.append(format_choice(chosen))
    if share := record["unknown_share"]:
        rows.append(f"{'unknown':>20}  {share:.1%} of the tokens, which makes their loss small")
    for name in sorted(names, key=lambda name: not name.startswith(unit)):
        interval = "  {:.4f} to {:.4f}".format(*intervals[name]) if intervals[name] else ""
        rows.append(f"{name:>20}  {record[name]:.4f}{interval}")
    speed = f"{record['tokens_per_second']:,.0f} tokens per second"
    peak = f"peak memory {record['peak_memory_bytes'] / 2**20:,.0f} MiB"
    rows.append(f"{record['seconds']:.1f} s, {speed}, {peak}")
    if record["published"]:
        rows.append(format_published(record["published"]))
    return "\n".join(rows)


def format_choice(chosen: dict[str, Any]) -> str:
    """Return how an adaptation was chosen as a line of the table."""
    where = "this text" if chosen["is_reported"] else f"{chosen['text']}, {chosen['split']}"
    counts = [f"{count:,} tokens for the {name}" for name, count in chosen["tokens"].items()]
    how = f"by {' and '.join(counts)}" if counts else "nothing, as all is given"
    return f"chosen on {where}: {how}, in {chosen['seconds']:.1f} s"
