"""inspect and recl: tables and pictures from a checkpoint, on its own text or another."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning import stream_nats
from txl_lightning.checkpoints import load_run
from txl_lightning.commands.recl import names
from txl_lightning.commands.texts import text_ids

PNG = b"\x89PNG"


@pytest.fixture
def checkpoint(run_folder) -> Path:
    return run_folder / "checkpoints" / "best.ckpt"


def table(path: Path) -> tuple[list[dict[str, str]], dict]:
    """A table as CSV and as JSON."""
    with path.with_suffix(".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return rows, json.loads(path.with_suffix(".json").read_text())


def test_inspect_writes_each_table_and_its_picture(txl, checkpoint):
    code, output = txl("inspect", checkpoint, "--batch_size=2", "--out=seen")
    assert code == 0
    assert "written to seen" in output.out
    for name, n_row in (("positions", 2 * 8), ("memory", 6), ("attention", 2)):
        rows, said = table(Path("seen", name))
        assert len(rows) == len(said["rows"]) == n_row
        assert {key: str(value) for key, value in said["rows"][-1].items()} == rows[-1]
        assert (said["tokens"], said["tgt_len"], said["unit"]) == (300, 8, "byte")
        assert Path("seen", f"{name}.png").read_bytes().startswith(PNG)
    assert [row["mem_len"] for row in table(Path("seen", "memory"))[1]["rows"]] == [
        0, 2, 4, 8, 16, 32,
    ]  # fmt: skip


def test_inspect_measures_what_stream_nats_does(txl, checkpoint, run_folder):
    options = ("--batch_size=1", "--tgt_len=10", "--mem_lens", "20", "5", "--tokens=200")
    assert txl("inspect", checkpoint, *options)[0] == 0
    rows = table(Path("inspect", "memory"))[1]["rows"]
    assert [row["mem_len"] for row in rows] == [0, 5, 8, 20]
    model, vocab = load_run(checkpoint)
    ids = text_ids(str(checkpoint), vocab, None, "val")[:200]
    for row in rows:
        lengths = {"tgt_len": 10, "mem_len": row["mem_len"]}
        nats_BT = stream_nats(model, ids, batch_size=1, **lengths)[:, 20:190]
        assert row["nats"] == pytest.approx(nats_BT.mean().item(), abs=1e-6)


def test_a_checkpoint_finds_the_text_of_its_run_or_takes_another(run_folder, checkpoint, tmp_path):
    _, vocab = load_run(checkpoint)
    whole = (run_folder.parent / "letters.txt").read_bytes()
    parts = {"train": whole[:5400], "val": whole[5400:5700], "test": whole[5700:]}
    for split, text in parts.items():
        assert text_ids(str(checkpoint), vocab, None, split).tobytes() == text
    other = tmp_path / "other.txt"
    other.write_bytes(b"another text")
    assert text_ids(str(checkpoint), vocab, str(other), "val").tobytes() == b"another text"


def test_words_are_those_that_the_checkpoint_knows(txl, small, text_file, tmp_path):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    path = str(tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt")
    _, vocab = load_run(path)
    Path("other.txt").write_text("cd ab\nxy\n")
    found = text_ids(path, vocab, "other.txt", "val")
    assert vocab.decode(found.tolist()).split() == ["cd", "ab", "<unk>"]
    assert set(vocab.decode(text_ids(path, vocab, None, "val").tolist()).split()) == {"ab", "cd"}


def test_a_text_whose_vocabulary_has_changed_is_refused(txl, small, text_file, tmp_path):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    path = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    text_file.write_text("ab xy\n" * 500)
    code, output = txl("inspect", path)
    assert code == 3
    assert re.search(r"the checkpoint's is \w{16}, this text's \w{16}", output.err)


def test_a_checkpoint_without_its_run_needs_a_text(txl, checkpoint, tmp_path):
    lonely = tmp_path / "far" / "away" / "best.ckpt"
    lonely.parent.mkdir(parents=True)
    lonely.write_bytes(checkpoint.read_bytes())
    code, output = txl("inspect", lonely)
    assert code == 3
    assert "says what it was trained on; give a text with --path" in output.err
    Path("text.txt").write_text("some text " * 50)
    code, _ = txl("inspect", lonely, "--path=text.txt", "--batch_size=2")
    assert code == 0


@pytest.mark.parametrize(
    ("verb", "given", "said"),
    [
        ("inspect", ["--split=dev"], "split: invalid dev; expected one of train, val"),
        ("inspect", ["--tokens=0"], "tokens: invalid 0; expected at least 1"),
        ("inspect", ["--mem_lens", "4", "x"], "mem_lens: invalid x; expected a whole"),
        ("recl", ["--step=0"], "step: invalid 0"),
        ("recl", ["--step=10", "--max_context=19"], "max_context: invalid 19; .* (20)"),
        ("recl", ["--positions=0"], "positions: invalid 0"),
        ("recl", ["--r", "0.5", "1.5"], "r: invalid 1.5; expected greater than 0"),
        ("recl", ["--max_context=300"], "max_context: invalid 300; .* the 300 tokens"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(txl, checkpoint, verb, given, said):
    code, output = txl(verb, checkpoint, *given)
    assert code == 2
    (line,) = output.err.strip().splitlines()
    start, _, end = said.partition(".*")
    assert line.startswith(f"error: {start.rstrip()}")
    assert end.strip() in line


@pytest.mark.parametrize("verb", ["inspect", "recl"])
def test_a_verb_without_a_checkpoint_says_so(txl, verb):
    code, output = txl(verb)
    assert code == 2
    assert "ckpt_path" in output.err


def test_recl_compares_a_group_on_the_same_positions(txl, checkpoint):
    other = checkpoint.with_name("last.ckpt")
    options = ("--step=4", "--max_context=12", "--positions=9", "--r", "0.5", "1")
    code, output = txl("recl", checkpoint, other, *options)
    assert code == 0
    found, said = table(Path("recl", "recl"))
    assert [(row["model"], float(row["r"])) for row in found] == [
        ("best", 0.5), ("last", 0.5), ("best", 1), ("last", 1),
    ]  # fmt: skip
    assert {int(row["recl"]) for row in found} <= {4, 8, 12}
    assert (said["contexts"], said["positions"]) == ([4, 8, 12], 9)
    assert np.isfinite([said["nats"][name] for name in ("best", "last")]).all()
    assert len(table(Path("recl", "gains"))[0]) == 2 * 2 * 2
    assert output.out.count("RECL") == 4
    assert Path("recl", "recl.png").read_bytes().startswith(PNG)


def test_recl_reads_whole_contexts_or_as_in_training(txl, checkpoint, run_folder):
    model, vocab = load_run(checkpoint)
    ids = text_ids(str(checkpoint), vocab, None, "val").astype(np.int64)
    window = torch.from_numpy(ids[30:61])[None]
    memory, h_BLD = model.empty_memory(1), None
    for start, stop in ((0, 6), (6, 14), (14, 22), (22, 30)):
        h_BLD, memory = model.hidden(window[:, start:stop], memory)
    expected = {"trained": model.head.nats(h_BLD[:, -1:], window[:, -1:]).item()}
    expected["whole"] = model.loss(window[:, :-1], window[:, 1:])[0][0, -1].item()
    Path("text.txt").write_bytes(ids[30:61].astype(np.uint8).tobytes())
    for reading, nats in expected.items():
        options = ("--step=15", "--max_context=30", "--path=text.txt", f"--reading={reading}")
        assert txl("recl", checkpoint, *options)[0] == 0
        assert table(Path("recl", "recl"))[1]["nats"]["best"][-1] == pytest.approx(nats, abs=1e-5)


def test_a_group_has_one_vocabulary_and_no_model_twice(txl, checkpoint, small):
    assert txl("fit", *small, "--data.vocab=characters")[0] == 0
    other = Path("runs", "version_0", "checkpoints", "last.ckpt")
    code, output = txl("recl", checkpoint, other)
    assert code == 2
    assert f"ckpt_path: {other} has another vocabulary than {checkpoint}" in output.err
    code, output = txl("recl", checkpoint, checkpoint)
    assert code == 2
    assert "expected different files" in output.err


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a/b/best.ckpt"], ["best"]),
        (["a/b/best.ckpt", "a/b/last.ckpt"], ["best", "last"]),
        (["r/txl/v_0/best.ckpt", "r/plain/v_0/best.ckpt"], ["txl", "plain"]),
        (["r/txl/v_0/best.ckpt", "r/txl/v_1/last.ckpt"], ["v_0/best", "v_1/last"]),
        (["r/best.ckpt", "r/old/best.ckpt"], ["best", "old"]),
    ],
)
def test_models_are_called_what_tells_them_apart(paths, expected):
    assert names(paths) == expected
