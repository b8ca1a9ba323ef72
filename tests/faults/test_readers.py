"""Changed files: every reader reads them, or refuses them in one line."""

import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import yaml

from txl_lightning import files
from txl_lightning.checkpoints import load, load_checkpoint, save_folder
from txl_lightning.checkpoints.loading import find_latest
from txl_lightning.convert import load_any_checkpoint, save_huggingface
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.text_files import SPLITS
from txl_lightning.data.vocab import Characters
from txl_lightning.errors import format_line, is_out_of_memory
from txl_lightning.runs.logger import RunLogger
from txl_lightning.runs.metrics_table import read_metrics
from txl_lightning.sweeps.search import load_sweep_file, open_study, suggest_parameters
from txl_lightning.sweeps.trials import read_metric

pytestmark = pytest.mark.faults

ALPHABET = "abcdefghijk"
VALUE = re.compile(rb"-?\d[\d.e+-]*|\"[^\"\n]*\"|\w+")
HOSTILE = [b"-1", b"0", b"1e400", b"NaN", b"99999999999999999999", b"4000000000", b'"\\ud800"']
HOSTILE += [b"[]", b"{}", b"null", b'"\x1b]0;x\x07"', b"\xff", b"true", b'"a b"', b"&a [*a, *a]"]
WHOLES = [b"", b"[]", b"{}", b"null", b'"a"', b"5", b"[" * 100_000, b"{" * 5000, bytes(5000), b"\n"]


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Return other bytes than these."""
    data = bytearray(content)
    first = chance.randrange(len(content))
    piece = slice(first, first + chance.randrange(1, 100))
    match chance.choice(["bit", "cut", "insert", "remove", "repeat", "value", "value", "whole"]):
        case "bit":
            data[first] ^= 1 << chance.randrange(8)
        case "cut":
            del data[first:]
        case "insert":
            data[first:first] = chance.randbytes(chance.randrange(1, 100))
        case "remove":
            del data[piece]
        case "repeat":
            data[first:first] = data[piece]
        case "value":
            places = [found.span() for found in VALUE.finditer(content[:100_000])]
            start, end = chance.choice(places or [(first, first)])
            data[start:end] = chance.choice(HOSTILE)
        case "whole":
            data[:] = chance.choice([*WHOLES, chance.randbytes(5000)])
    return bytes(data)


class Target:
    """A file, its reader, and True if a change of what is read must be refused."""

    def __init__(self, path: Path, read: Callable, verified: bool = False, named=True) -> None:
        self.path = path
        self.read = read
        self.verified = verified
        self.named = named


def prepare(folder: Path, **settings):
    """Open a text with all checks; return its tokens."""
    store = DataConfig(data_dir=str(folder / "data"), **settings).open_text(whole=True)
    texts = [store.text(split) for split in SPLITS]
    return [text.ids_at(np.arange(len(text))).tolist() for text in texts]


def list_weights(model) -> dict:
    return {name: weight.tolist() for name, weight in model.state_dict().items()}


def make_checkpoint(folder, run, **_):
    path = run / "checkpoints" / "last.ckpt"
    return Target(path, lambda: list_weights(load(path)[0]), verified=True)


def make_manifest(folder, run, **_):
    path = run / "checkpoints" / "last.ckpt"

    def read():
        assert find_latest(run)[0] is not None, "best.ckpt is whole"
        return list_weights(load(path)[0])

    return Target(path.with_name("last.ckpt.json"), read, verified=True)


def make_config(folder, run, **_):
    # If the text is not the checkpoint's, the error names the text, not this file.
    path = run / "config.yaml"

    def read():
        return load_checkpoint(run / "checkpoints" / "last.ckpt").open_text()[1].fingerprint

    return Target(path, read, verified=True, named=False)


def make_config_of_fit(folder, run, parse_fit, **_):
    path = run / "config.yaml"
    return Target(path, lambda: parse_fit(f"--config={path}"), named=False)


def make_metrics(folder, run, **_):
    return Target(run / "metrics.csv", lambda: read_metrics(run).validations)


def make_metrics_of_resume(folder, run, **_):
    logger = RunLogger(run.parent, name="", version=run.name)

    def read():
        logger.writer = None
        logger.drop_rows(3, validation_due=True)

    return Target(run / "metrics.csv", read)


def make_metrics_of_sweep(folder, run, **_):
    return Target(run / "metrics.csv", lambda: read_metric(run.parent, "val/nats"))


def make_vocabulary(kind: str):
    def make(folder, text, **_):
        settings = {"path": str(text), "vocab": kind}
        store = DataConfig(data_dir=str(folder / "first"), **settings).open_text()
        path = folder / "vocab.json"
        path.write_text(store.vocab.to_json())
        return Target(path, lambda: prepare(folder, **settings | {"vocab": str(path)}))

    return make


def make_tokenizer(folder, text, **_):
    from tokenizers import ByteLevelBPETokenizer

    path = folder / "tokenizer.json"
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text.read_text()], vocab_size=300, show_progress=False)
    tokenizer.save(str(path))
    return Target(path, lambda: prepare(folder, path=str(text), vocab=str(path)))


def make_store(name: str):
    def make(folder, text, **_):
        settings = {"path": str(text), "vocab": "words", "document_unit": "lines"}
        prepare(folder, **settings)
        [path] = (folder / "data" / "prepared").glob(f"*/{name}")
        return Target(path, lambda: prepare(folder, **settings), verified=True)

    return make


def make_folder(name: str):
    def make(folder, make_net, **_):
        def read():
            model, vocab = load(folder / "saved")
            return list_weights(model), model.config, vocab

        save_folder(make_net(), folder / "saved", Characters(ALPHABET))
        return Target(folder / "saved" / name, read, verified=True)

    return make


def make_state_dict(folder, repository, **_):
    source = repository / "tests" / "golden" / "nvidia" / "checkpoint_best.pt"
    path = folder / "a.pt"
    path.write_bytes(source.read_bytes())
    return Target(path, lambda: load_any_checkpoint(path)[0].config)


def make_huggingface(folder, make_net, **_):
    theirs = folder / "theirs"
    save_huggingface(make_net().float(), theirs, None)
    return Target(theirs / "config.json", lambda: load_any_checkpoint(theirs)[0].config)


SWEEP = {
    "method": "random",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {"lr": {"min": 0.001, "max": 0.01}, "mem_len": {"values": [0, 16]}},
    "command": ["${interpreter}", "${args}"],
    "early_terminate": {"type": "hyperband", "min_iter": 2, "eta": 2},
}


def make_sweep(folder, **_):
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(SWEEP))
    return Target(path, lambda: load_sweep_file(str(path)))


def make_journal(folder, **_):
    def read():
        study = open_study(SWEEP, folder, 1)
        return suggest_parameters(study, study.ask(), SWEEP)

    read()
    return Target(folder / "journal.log", read)


def make_tar(kind: str):
    def make(folder, text, **_):
        path = folder / f"a.{kind}"
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as tar:
            for name in ("train", "val", "test"):
                tar.add(text, f"{name}/a.txt")
        return Target(path, lambda: prepare(folder, path=str(path)), verified=kind == "tar.gz")

    return make


READERS = {
    "checkpoint": make_checkpoint,
    "manifest": make_manifest,
    "config.yaml": make_config,
    "--config": make_config_of_fit,
    "metrics.csv": make_metrics,
    "metrics.csv, resumed": make_metrics_of_resume,
    "metrics.csv, sweep": make_metrics_of_sweep,
    "vocab.json, words": make_vocabulary("words"),
    "vocab.json, characters": make_vocabulary("characters"),
    "vocab.json, subwords": make_vocabulary("bpe"),
    "tokenizer.json": make_tokenizer,
    "store, manifest": make_store("manifest.json"),
    "store, ids": make_store("train.ids"),
    "store, starts": make_store("train.starts"),
    "store, vocabulary": make_store("vocab.json"),
    "safetensors": make_folder("model.safetensors"),
    "config.json": make_folder("config.json"),
    "vocab.json of a folder": make_folder("vocab.json"),
    "NVIDIA's checkpoint": make_state_dict,
    "Hugging Face's config": make_huggingface,
    "sweep file": make_sweep,
    "sweep journal": make_journal,
    "tar": make_tar("tar"),
    "tar.gz": make_tar("tar.gz"),
}


def describe(target: Target, error: BaseException) -> str:
    """Return what is wrong with the error of a file, or an empty text."""
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        return ""
    if not isinstance(error, ValueError | OSError):
        return f"{type(error).__name__}: {error}"
    line = format_line(str(error))
    if target.named and target.path.parent.name not in line:
        return f"no name: {line}"
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_changed_file_is_refused_in_one_line_or_read(
    name, tmp_path, request, run_folder, make_net, repository, monkeypatch, count
):
    monkeypatch.setattr(files, "MIN_AGE", 0)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 60 + "a dog was there\n" * 20)
    copytree(run_folder, tmp_path / "runs" / "version_0")
    parts = {"run": tmp_path / "runs" / "version_0", "text": text, "repository": repository}
    parts |= {"make_net": make_net}
    if name == "--config":
        parts["parse_fit"] = request.getfixturevalue("parse_fit")
    target = READERS[name](tmp_path, **parts)
    chance = random.Random(name)
    whole = target.path.read_bytes()
    expected = target.read()
    wrong = []
    for nth in range(count(20, 200)):
        whole = target.path.read_bytes() if name == "sweep journal" and not nth else whole
        content = mutate(whole, chance)
        target.path.write_bytes(content)
        try:
            found = target.read()
            problem = "read" if target.verified and found != expected else ""
        # Whatever a reader raises is judged; SystemExit and a panic of Rust are no Exceptions.
        except BaseException as error:
            problem = describe(target, error)
        if problem:
            wrong.append(f"{nth}: {problem}")
    assert not wrong, "\n".join(wrong)
