"""evaluate: the record, the table and the errors."""

import hashlib
import io
import json
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from txl_lightning import CorpusDataModule, stream_nats
from txl_lightning.checkpoints import load_run
from txl_lightning.data import corpora

LENGTHS = ("--tgt_len=8", "--mem_len=5", "--batch_size=2", "--drop_last=true")


@pytest.fixture
def checkpoint(run_folder) -> Path:
    return run_folder / "checkpoints" / "best.ckpt"


@pytest.fixture
def measure(txl, checkpoint):
    """The record that evaluate prints."""

    def run(*options) -> dict:
        code, output = txl("evaluate", checkpoint, *options)
        assert code == 0, output.err
        [line] = output.out.splitlines()
        return json.loads(line)

    return run


@pytest.fixture
def refused(txl, checkpoint):
    """The exit code and the line of a mistake."""

    def run(*options, path=checkpoint) -> tuple[int, str]:
        code, output = txl("evaluate", path, *options)
        assert output.out == ""
        [line] = output.err.splitlines()
        return code, line.removeprefix("error: ")

    return run


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluate_measures_the_text_of_the_training(measure, run_folder, split):
    record = measure("--split", split, *LENGTHS)
    data = CorpusDataModule(**yaml.safe_load((run_folder / "config.yaml").read_text())["data"])
    model, _ = load_run(run_folder / "checkpoints" / "best.ckpt")
    nats = stream_nats(model, data.store.ids(split), batch_size=2, tgt_len=8, mem_len=5)
    assert record["nats"] == pytest.approx(nats.mean().item(), rel=1e-6)
    assert (record["tokens"], record["tokens_scored"]) == (300, nats.numel())
    assert record["fingerprint"] == data.store.fingerprint


def test_evaluate_agrees_with_the_test_command(txl, measure, run_folder, checkpoint):
    arguments = ("--config", run_folder / "config.yaml", "--ckpt_path", checkpoint)
    _, output = txl("test", *arguments)
    [found] = re.findall(r"test/nats\W+([\d.]+)", output.out)
    record = measure("--batch_size=4", "--tgt_len=8", "--drop_last=true")
    assert record["nats"] == pytest.approx(float(found), rel=1e-5)


def test_the_record_names_everything_a_number_depends_on(measure, checkpoint):
    record = measure(*LENGTHS)
    assert record["protocol"] == "segments"
    assert record["lengths"] == {
        "batch_size": 2, "tgt_len": 8, "mem_len": 5, "clamp_len": None, "same_length": None,
        "ext_len": 0, "warmup_len": 0, "max_tokens": None, "drop_last": True,
    }  # fmt: skip
    assert record["cold_starts"] == 2
    assert record["bytes_scored"] == record["tokens_scored"] == 298
    assert record["bits_per_byte"] == pytest.approx(record["nats"] / math.log(2))
    assert record["perplexity"] == pytest.approx(math.exp(record["nats"]))
    for name in ("nats", "bits_per_byte", "perplexity"):
        low, high = record["interval"][name]
        assert low < record[name] < high
    sha256 = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert (record["checkpoint"], record["checkpoint_sha256"]) == (str(checkpoint), sha256)
    speed = record["tokens_scored"] / record["seconds"]
    assert record["tokens_per_second"] == pytest.approx(speed)
    assert record["peak_memory_bytes"] > 10**7
    assert record["machine"]["torch"] == torch.__version__
    assert record["commit"] is None or len(record["commit"].removesuffix("-dirty")) == 40
    assert record["date"].endswith("+00:00")


def test_the_record_has_the_lengths_in_use(measure):
    assert measure()["lengths"]["mem_len"] == 8
    record = measure("--protocol=single-pass")
    assert (record["lengths"]["tgt_len"], record["tokens_scored"]) == (300, 299)


def test_a_table_is_printed_on_stderr(txl, checkpoint):
    _, output = txl("evaluate", checkpoint, "--protocol=paper-wt103")
    first, counts, headline, *_, last = output.err.splitlines()
    assert first.startswith("paper-wt103-base: ")
    assert counts == "290 of 300 tokens scored, 10 cold starts"
    assert re.fullmatch(r" +perplexity  [\d.]+  [\d.]+ to [\d.]+", headline)
    assert "tokens per second" in last


def test_records_are_appended_to_a_file(measure, tmp_path):
    records = [measure("--out=all.jsonl", *LENGTHS) for _ in range(2)]
    assert [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()] == records


def test_nats_of_every_token_are_stored_in_input_order(measure, checkpoint, text_file):
    record = measure("--per_token=nats.npy", "--path", text_file, "--max_tokens=99", *LENGTHS)
    nats_N = np.load("nats.npy")
    model, _ = load_run(checkpoint)
    ids = np.frombuffer(text_file.read_bytes()[:100], np.uint8)
    expected = stream_nats(model, ids, batch_size=2, tgt_len=8, mem_len=5)
    assert np.isnan(nats_N).nonzero()[0].tolist() == [0, 50]
    np.testing.assert_allclose(nats_N.reshape(2, 50)[:, 1:], expected, rtol=1e-5)
    assert record["nats"] == pytest.approx(np.nanmean(nats_N), rel=1e-6)


def test_the_standard_input_is_measured_like_a_file(measure, monkeypatch, text_file):
    found = measure("--path", text_file, *LENGTHS)
    piped = io.TextIOWrapper(io.BytesIO(text_file.read_bytes()))
    monkeypatch.setattr(sys, "stdin", piped)
    record = measure("--path=-", *LENGTHS)
    assert (record["text"], record["nats"]) == ("-", found["nats"])
    assert record["tokens"] == 6000


def test_the_batch_size_changes_nothing_with_a_warm_up(measure, text_file):
    options = ("--path", text_file, "--max_tokens=200", "--same_length=mem_len", "--warmup_len=16")
    records = [measure(*options, f"--batch_size={rows}", "--tgt_len=8") for rows in (1, 7)]
    assert [record["tokens_scored"] for record in records] == [200, 200]
    assert [record["cold_starts"] for record in records] == [1, 1]
    assert records[1]["nats"] == pytest.approx(records[0]["nats"], rel=1e-6)


def test_a_sliding_window_scores_one_token_per_window_without_memory(measure, text_file):
    options = ("--path", text_file, "--protocol=sliding-window", "--max_tokens=40")
    records = [measure(*options, "--window=9", f"--batch_size={rows}") for rows in (1, 8)]
    assert records[1]["nats"] == pytest.approx(records[0]["nats"], rel=1e-6)
    assert records[0]["lengths"]["mem_len"] == 0
    assert records[0]["tokens_scored"] == 40


def test_a_corpus_is_encoded_with_the_checkpoints_vocabulary(measure, monkeypatch, tmp_path):
    monkeypatch.setattr(corpora, "verify_file", lambda *_: None)
    for name in ("train", "valid", "test"):
        path = tmp_path / "here" / "wikitext2" / f"wiki.{name}.tokens"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a b c\n" * 50)
    record = measure("--corpus=wikitext2", "--data_dir=here", "--split=val", *LENGTHS)
    assert (record["text"], record["split"], record["tokens"]) == ("wikitext2", "val", 300)


def test_words_of_the_standard_input_are_counted_in_bytes(txl, small, text_file, monkeypatch):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    checkpoint = Path("runs", "version_0", "checkpoints", "last.ckpt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"cd  ab\n" * 30)))
    code, output = txl("evaluate", checkpoint, "--path=-")
    assert code == 0, output.err
    record = json.loads(output.out)
    assert (record["tokens"], record["bytes_scored"]) == (90, pytest.approx(89 * 7 / 3))
    bits = record["bits_per_word"] * 3 / 7
    assert record["bits_per_byte"] == pytest.approx(bits)


def test_a_task_has_no_bits_per_byte(txl, small):
    task = (
        "--data.path=null",
        "--data.corpus=recall",
        "--data.task.n_eval=40",
        "--trainer.limit_val_batches=1.0",
    )
    code, output = txl("fit", *small, *task)
    assert code == 0, output.err
    checkpoint = Path("runs", "version_0", "checkpoints", "last.ckpt")
    code, output = txl("evaluate", checkpoint, "--batch_size=4")
    assert code == 0, output.err
    record = json.loads(output.out)
    assert (record["bytes_scored"], record["text"]) == (None, "recall")
    assert "bits_per_byte" not in record
    assert record["tokens_scored"] == 40


def test_a_converted_folder_is_measured_like_its_checkpoint(txl, measure, checkpoint, text_file):
    options = ("--path", text_file, "--max_tokens=99", *LENGTHS)
    expected = measure(*options)
    assert txl("convert", checkpoint, "--out=folder")[0] == 0
    code, output = txl("evaluate", "folder", *options)
    assert code == 0, output.err
    found = json.loads(output.out)
    assert found["nats"] == expected["nats"]
    weights = Path("folder", "model.safetensors").read_bytes()
    assert found["checkpoint_sha256"] == hashlib.sha256(weights).hexdigest()


def test_a_text_that_has_changed_is_refused(refused, run_folder, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run_folder, moved)
    config = yaml.safe_load((moved / "config.yaml").read_text())
    config["data"]["path"] = str(tmp_path / "letters.txt")
    (tmp_path / "letters.txt").write_bytes(b"other" * 1000)
    (moved / "config.yaml").write_text(yaml.safe_dump(config))
    code, line = refused(path=moved / "checkpoints" / "best.ckpt")
    assert code == 3
    assert re.search(r"the checkpoint's is \w{16}, this text's \w{16}; give a text with", line)


def test_the_text_is_found_from_the_checkpoints_own_folder(txl, checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    code, output = txl("evaluate", checkpoint.name, *LENGTHS)
    assert code == 0, output.err


def test_a_checkpoint_without_its_run_needs_a_path(refused, measure, checkpoint, tmp_path):
    (tmp_path / "sub").mkdir()
    alone = shutil.copy(checkpoint, tmp_path / "sub" / "alone.ckpt")
    code, line = refused(path=alone)
    assert code == 3
    assert line.endswith(f"no {tmp_path / 'config.yaml'} says what it was trained on; "
                         "give a text with --path")  # fmt: skip


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (["--protocol=papr"], 2, "protocol: invalid papr; expected one of segments, "),
        (["--tgt_len=0"], 2, "tgt_len: invalid 0; expected at least 1"),
        (["--corpus=novels"], 2, "corpus: invalid novels; expected one of python_sour"),
        (["--corpus=ptb", "--path=a"], 2, "corpus: invalid ptb; expected null with"),
        (["--path=none.txt"], 3, "none.txt: no such file; data.path must name a text file"),
        (["--path=letters.txt", "--split=val"], 3, "letters.txt: its val text is empty; give an"),
        (["--batch_size=151"], 3, "the text has 300 tokens; batch_size 151 needs 2 in each row"),
        (["--out=none/all.jsonl"], 6, "out: none/all.jsonl: there is no folder none"),
        (["--per-token=."], 6, "per_token: invalid ., a folder; expected a file"),
        (["--document_unit=lines"], 2, "document_unit: invalid lines; expected path or corpus"),
        (["--device=cuda"], 2, "device: invalid cuda; expected cpu, because torch fi"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code(refused, monkeypatch, options, code, line):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = refused(*options)
    assert (found[0], found[1].replace(str(Path.cwd()) + "/", "")[: len(line)]) == (code, line)
