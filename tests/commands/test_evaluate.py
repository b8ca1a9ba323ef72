"""evaluate: the record, the table and the errors."""

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.helpers.late_device import imitate_graphs
from txl_lightning import stream_nats
from txl_lightning.checkpoints import load, load_checkpoint
from txl_lightning.commands import evaluate, inputs
from txl_lightning.commands.inputs import read_ids
from txl_lightning.data import corpora
from txl_lightning.data.vocab import Bytes
from txl_lightning.evaluation import tuning
from txl_lightning.model import captured

LENGTHS = ("--tgt_len=8", "--mem_len=5", "--batch_size=2", "--drop_last=true")


@pytest.fixture
def measure(accepted, checkpoint):
    def run(*options, path=checkpoint) -> dict:
        [line] = accepted("evaluate", path, *options).out.splitlines()
        return json.loads(line)

    return run


def test_evaluate_agrees_with_the_test_command(txl, measure, run_folder, checkpoint):
    _, output = txl("test", run_folder)
    [nats] = re.findall(r"test/nats +([\d.]+)$", output.out, re.MULTILINE)
    record = measure("--batch_size=4", "--tgt_len=8", "--drop_last=true")
    assert record["nats"] == pytest.approx(float(nats), abs=6e-5)


def test_the_record_names_everything_a_number_depends_on(measure, checkpoint, monkeypatch):
    # The text of a run is found from any folder.
    monkeypatch.chdir(checkpoint.parent)
    record = measure(*LENGTHS, path=checkpoint.name)
    assert record["protocol"] == "segments"
    assert record["lengths"] == {
        "batch_size": 2, "tgt_len": 8, "mem_len": 5, "clamp_len": None, "same_length": None,
        "ext_len": 0, "warmup_len": 0, "max_tokens": None, "drop_last": True,
    }  # fmt: skip
    assert record["cold_starts"] == 2
    assert (record["tokens"], record["tokens_scored"], record["bytes_scored"]) == (300, 298, 298)
    for name in ("nats", "bits_per_byte", "perplexity"):
        low, high = record["interval"][name]
        assert low < record[name] < high
    sha256 = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert (record["checkpoint"], record["checkpoint_sha256"]) == ("best.ckpt", sha256)
    assert record["tokens_per_second"] == pytest.approx(298 / record["seconds"])
    assert record["weights"] == "float32"
    assert record["peak_memory_bytes"] > 10**7
    assert record["machine"]["torch"] == torch.__version__
    assert record["date"].endswith("+00:00")
    assert measure("--protocol=single-pass")["lengths"]["tgt_len"] == 300
    window = measure("--protocol=sliding-window", "--window=9", "--batch_size=4")["lengths"]
    assert (window["tgt_len"], window["ext_len"], window["max_tokens"]) == (1, 8, 1000)


@pytest.mark.bfloat16
def test_bfloat16_weights_change_nats_slightly(txl, measure, checkpoint, text_file):
    txl("convert", checkpoint, "--out=ours")
    records = [
        measure(f"--weights={name}", "--path", text_file, *LENGTHS, path="ours")
        for name in ("float32", "bf16")
    ]
    assert [record["weights"] for record in records] == ["float32", "bf16"]
    assert records[1]["nats"] == pytest.approx(records[0]["nats"], rel=1e-3)


def test_a_text_read_by_graphs_has_the_nats_of_one_read_as_usual(measure, monkeypatch):
    # Weights are packed on a CPU only.
    monkeypatch.setattr(inputs, "pack_weights", lambda model, _: model)
    expected = measure(*LENGTHS)
    with imitate_graphs(monkeypatch, captured) as graphs:
        record = measure(*LENGTHS, "--cuda_graph=true")
    assert record["nats"] == pytest.approx(expected["nats"], rel=1e-5)
    assert (record["cuda_graph"], expected["cuda_graph"]) == (True, False)
    # The last one of 19 segments is shorter.
    assert [graph.replays for graph in graphs] == [18]


def test_graphs_are_refused_with_a_choice_or_without_a_gpu_before_a_text_is_read(
    refused, checkpoint, monkeypatch
):
    monkeypatch.setattr(evaluate, "open_text", pytest.fail)
    expected = "cuda_graph: invalid true; expected false"
    words = ["evaluate", checkpoint, "--cuda_graph=true"]
    assert refused(*words) == (2, f"{expected} on a device of type cpu")
    message = f"{expected} with adapt, cache_len or rate"
    assert refused(*words, "--adapt=auto") == (2, message)


def test_an_adapted_result_has_another_name_and_names_its_adaptation(txl, checkpoint, text_file):
    words = ("evaluate", checkpoint, "--path", text_file, "--max_tokens=99")
    adapted = (*words, "--cache_len=30", "--rate=0.1", "--out=all.jsonl")
    _, static = txl(*words)
    _, changed = txl(*adapted)
    assert static.err.startswith("segments (changed: max_tokens): ")
    first, _, third, *_ = changed.err.splitlines()
    how = "cache_len 30, cache_theta 40, cache_weight 0.4, rate 0.1, decay 0"
    assert (first[:15], third) == ("segments-adapte", f"adapted with {how}")
    record = json.loads(Path("all.jsonl").read_text())
    assert (record["protocol"], record["adaptation"]["cache_len"]) == ("segments-adapted", 30)
    assert record["lengths"] == json.loads(static.out)["lengths"]


def test_auto_chooses_on_the_validation_text_of_training_what_is_not_given(
    txl, accepted, refused, checkpoint, text_file, monkeypatch
):
    monkeypatch.setattr(tuning, "RATES", (0.1,))
    monkeypatch.setattr(tuning, "WEIGHTS", (0.05,))
    words = ("--adapt=auto", "--adapt_tokens=200", "--cache_theta=9", "--max_tokens=99")
    output = accepted("evaluate", checkpoint, *words)
    notice, chosen, *_ = output.err.splitlines()
    assert notice == "adapt auto: reading the validation text up to 200 tokens"
    how = "cache_len 20000, cache_theta 9, cache_weight 0.05, rate 0.1, decay 0"
    assert chosen == f"adapt auto: {how}"
    record = json.loads(output.out)
    values = {"cache_len": 20_000, "cache_theta": 9, "cache_weight": 0.05, "rate": 0.1, "decay": 0}
    assert record["adaptation"] == record["adapt"]["values"] == values
    assert record["adapt"]["tokens"] == {"cache": 256, "rate": 256}
    assert record["adapt"]["edges"] == ["cache_weight", "rate"]
    assert "adapt auto: rate 0.1 is at the edge of the values tried" in output.err
    assert txl("convert", checkpoint, "--out=ours")[0] == 0
    message = "adapt: auto needs the validation text of training; give cache_len and rate"
    assert refused("evaluate", "ours", "--path", text_file, "--adapt=auto") == (3, message)
    message = "rate: invalid 0.1; expected 0, or a single row, not 2"
    assert refused("evaluate", checkpoint, "--rate=0.1", "--batch_size=2") == (2, message)


def test_steps_by_the_rms_of_gradients_read_the_training_text_first(
    txl, accepted, refused, checkpoint, text_file
):
    words = ("--adapt=auto", "--adapt_tokens=200", "--cache_len=0", "--max_tokens=99")
    steps = ("--rms_tokens=300", "--rate_weights=layers.0.*,*norm*")
    output = accepted("evaluate", checkpoint, *words, *steps)
    notice, *_ = output.err.splitlines()
    assert notice == "rms_tokens: reading 300 tokens of the training text"
    record = json.loads(output.out)
    assert record["adaptation"]["rms_tokens"] == 300
    assert record["adaptation"]["rate_weights"] == "layers.0.*,*norm*"
    assert record["adaptation"]["rate"] in tuning.RMS_RATES
    assert txl("convert", checkpoint, "--out=ours")[0] == 0
    code, message = refused("evaluate", "ours", "--path", text_file, "--rate=0.001", steps[0])
    assert (code, message.split(": ")[:2]) == (3, ["rms_tokens", "invalid 300; expected null"])
    expected = "rms_tokens: invalid 300; expected null without rate"
    assert refused("evaluate", checkpoint, steps[0]) == (2, expected)


@pytest.mark.parametrize("where", ["test", "val", "path", "other"])
def test_a_choice_on_the_text_that_is_reported_is_said(
    accepted, checkpoint, run_folder, monkeypatch, where
):
    monkeypatch.setattr(tuning, "RATES", (0.0,))
    monkeypatch.setattr(tuning, "THETAS", (9.0,))
    name, store = load_checkpoint(checkpoint).open_text()
    raw = store.vocab.decode(store.ids("val").tolist())
    Path("other.txt").write_text(raw if where == "path" else raw[1:])
    options = {"test": [], "val": ["--split=val"]}.get(where, ["--path=other.txt"])
    output = accepted("evaluate", checkpoint, "--adapt=auto", "--adapt_tokens=99", *options)
    chosen = json.loads(output.out)["adapt"]
    is_same = where in ("val", "path")
    assert (chosen["split"], chosen["text"], chosen["is_reported"]) == ("val", name, is_same)
    warning = "warning: adapt auto chooses on the text that is reported"
    assert (warning in output.err) == is_same
    place = "this text" if is_same else f"{name}, val"
    assert f"chosen on {place}: by 128 tokens for the cache and 128 tokens for" in output.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--adapt_seconds=9"], "adapt_seconds: invalid 9.0; expected null without adapt auto"),
        (["--adapt_tokens=9"], "adapt_tokens: invalid 9; expected null without adapt auto"),
        (
            ["--adapt=auto", "--adapt_tokens=9", "--adapt_seconds=9"],
            "adapt_tokens: invalid 9; expected null with adapt_seconds",
        ),
        (["--cache_theta=9"], "cache_theta: invalid 9.0; expected null without cache_len"),
        (["--cache_weight=0.1"], "cache_weight: invalid 0.1; expected null without cache_len"),
        (["--decay=0.1", "--cache_len=9"], "decay: invalid 0.1; expected null without rate"),
        (["--adapt=auto", "--adapt_tokens=0"], "adapt_tokens: invalid 0; expected at least 1"),
        (["--adapt=auto", "--adapt_seconds=0"], "adapt_seconds: invalid 0.0; expected more than 0"),
    ],
    ids=str,
)
def test_what_acts_only_with_another_option_is_refused(refused, checkpoint, options, message):
    assert refused("evaluate", checkpoint, *options) == (2, message)


def test_the_test_command_adapts_by_option_and_names_its_results_so(
    txl, accepted, refused, measure, run_folder
):
    options = ("--data.eval_batch_size=1", "--adapt.cache_len=30", "--adapt.rate=0.1")
    shown = accepted("test", run_folder, *options).out
    [nats] = re.findall(r"test-adapted/nats +([\d.]+)$", shown, re.MULTILINE)
    assert "test/" not in shown
    record = measure("--tgt_len=8", "--cache_len=30", "--rate=0.1")
    assert record["nats"] == pytest.approx(float(nats), abs=6e-5)
    message = "adapt.rate: invalid 0.1; expected null, or data.eval_batch_size 1"
    assert refused("test", run_folder, "--adapt.rate=0.1") == (2, message)
    warm = ("--adapt.cache_len=9", "--adapt.adapt_across_documents=true")
    code, message = refused("test", run_folder, *warm, "--data.eval_warmup_len=4")
    name = "adapt.adapt_across_documents"
    expected = "false with a cache and a warm-up (4)"
    assert (code, message) == (2, f"{name}: invalid True; expected {expected}")
    message = "adapt.cache_theta: invalid 9.0; expected null without cache_len"
    assert refused("test", run_folder, "--adapt.cache_theta=9") == (2, message)


def test_a_table_is_printed_on_stderr_and_records_are_appended(txl, checkpoint, tmp_path):
    words = ("evaluate", checkpoint, "--protocol=paper-wt103", "--out=all.jsonl")
    outputs = [txl(*words)[1] for _ in range(2)]
    assert Path("all.jsonl").read_text() == "".join(output.out for output in outputs)
    notice, first, counts, headline, *_, last = outputs[0].err.splitlines()
    assert notice.startswith("distances up to ")
    assert first.startswith("paper-wt103-base: ")
    assert counts == "290 of 300 tokens scored, 10 cold starts"
    assert re.fullmatch(r" +perplexity  [\d.]+  [\d.]+ to [\d.]+", headline)
    assert "tokens per second" in last


def test_a_single_cold_start_is_counted_in_the_singular(txl, checkpoint):
    _, output = txl("evaluate", checkpoint, "--protocol=single-pass")
    assert "299 of 300 tokens scored, 1 cold start" in output.err.splitlines()


def test_a_terminal_shows_the_table_alone(txl, checkpoint, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, output = txl("evaluate", checkpoint, "--max_tokens=99", "--out=all.jsonl")
    assert (code, output.out, "letters.txt, test" in output.err) == (0, "", True)
    assert json.loads(Path("all.jsonl").read_text())["tokens"] == 100


def test_nats_of_every_token_are_stored_in_input_order(measure, checkpoint, text_file):
    record = measure("--per_token=nats.npy", "--path", text_file, "--max_tokens=99", *LENGTHS)
    nats_N = np.load("nats.npy")
    model, _ = load(checkpoint)
    ids = np.frombuffer(text_file.read_bytes()[:100], np.uint8)
    expected = stream_nats(model, ids, batch_size=2, tgt_len=8, mem_len=5)
    assert np.isnan(nats_N).nonzero()[0].tolist() == [0, 50]
    np.testing.assert_allclose(nats_N.reshape(2, 50)[:, 1:], expected, rtol=1e-5)
    assert record["nats"] == pytest.approx(np.nanmean(nats_N), rel=1e-6)
    assert record["split"] == "whole text"


def test_nats_that_cannot_be_stored_leave_the_file_that_was_there(
    txl, measure, checkpoint, limit_file_size
):
    measure("--per_token=nats.npy", "--max_tokens=99", *LENGTHS)
    before = Path("nats.npy").read_bytes(), {*Path().iterdir()}
    with limit_file_size(300):
        code, output = txl("evaluate", checkpoint, "--per_token=nats.npy", *LENGTHS)
    message = "nats.npy: cannot be written (File too large; "
    assert (code, message in output.err) == (6, True), output.err
    assert (Path("nats.npy").read_bytes(), {*Path().iterdir()}) == before


def test_a_corpus_is_encoded_with_the_checkpoints_vocabulary(measure, monkeypatch, tmp_path):
    monkeypatch.setattr(corpora, "verify_file", lambda *_: None)
    for name in ("train", "valid", "test"):
        path = tmp_path / "here" / "wikitext2" / f"wiki.{name}.tokens"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a b c\n" * 50)
    record = measure("--corpus=wikitext2", "--data_dir=here", "--split=val", *LENGTHS)
    assert (record["text"], record["split"], record["tokens"]) == ("wikitext2", "val", 300)


def test_words_of_the_standard_input_are_counted_in_bytes(
    txl, measure, small, text_file, monkeypatch
):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"cd  ab\n" * 30)))
    record = measure("--path=-", path="runs/version_0/checkpoints/last.ckpt")
    assert (record["text"], record["tokens"]) == ("-", 90)
    assert record["bytes_scored"] == pytest.approx(89 * 7 / 3)
    assert record["bits_per_byte"] == pytest.approx(record["bits_per_word"] * 3 / 7)


def test_bytes_of_a_part_of_words_are_not_those_of_the_mean_word(
    txl, measure, small, text_file, tmp_path
):
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    path = tmp_path / "two.jsonl"
    path.write_text('{"text": "a b"}\n{"text": "longer words"}\n')
    run = "runs/version_0/checkpoints/last.ckpt"
    record = measure("--path", path, "--per_document=each.jsonl", path=run)
    assert record["bytes_scored"] > 0
    documents = map(json.loads, Path("each.jsonl").read_text().splitlines())
    assert [each["bytes"] for each in documents] == [None, None]
    part = measure("--path", path, "--max_tokens=2", path=run)
    assert (part["bytes_scored"], "bits_per_byte" in part) == (None, False)
    assert part["bits_per_word"] == pytest.approx(part["nats"] / np.log(2))


def test_json_lines_on_the_standard_input_are_documents(accepted, checkpoint, monkeypatch):
    lines = [json.dumps({"id": n, "text": "abcd\n"}) for n in range(10)]
    for content, counts in (("\n".join(lines), (50, 40)), ('[{"text": "abcd"}]', (18, 17))):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        output = accepted("evaluate", checkpoint, "--path=-")
        record = json.loads(output.out)
        assert (record["tokens"], record["tokens_scored"]) == counts
    # The array is read as it is, by a model of bytes.
    assert "read as plain text, with all its marks" in output.err


def test_what_is_wrong_on_the_standard_input_is_said_of_it(refused, checkpoint, monkeypatch):
    content = b'{"text": "abcd"}\n{"text": 5}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    code, line = refused("evaluate", checkpoint, "--path=-")
    start = "the standard input: line 2 has no text: its text is a number"
    assert (code, line[: len(start)]) == (3, start)
    # Nothing of it stays in the data directory.
    assert not [*Path().rglob("stdin*")]


def test_a_byte_model_is_measured_on_a_file_that_is_not_text(measure, checkpoint):
    content = b"\0\xff\x89caf\xe9" * 20
    Path("any.dat").write_bytes(content)
    assert measure("--path=any.dat")["bytes_scored"] == len(content) - 1
    # As inspect and recl read it.
    ids = read_ids(load_checkpoint(checkpoint), Bytes(), "any.dat", None)
    assert ids.tolist() == [*content]


def test_first_token_of_a_document_is_not_scored_whatever_the_unit_of_the_text(measure, tmp_path):
    (tmp_path / "lines.txt").write_text("abcd\n" * 10)
    for unit, n_scored in (("none", 49), ("lines", 40)):
        record = measure("--path=lines.txt", f"--document_unit={unit}")
        assert (record["tokens"], record["tokens_scored"]) == (50, n_scored)


def test_a_task_has_no_bits_per_byte_and_no_text_to_inspect(accepted, refused, measure, small):
    task = ("--data.path=null", "--data.corpus=recall", "--data.task.n_eval=40")
    accepted("fit", *small, *task, "--trainer.limit_val_batches=1.0")
    last = "runs/version_0/checkpoints/last.ckpt"
    record = measure("--batch_size=4", path=last)
    assert (record["bytes_scored"], record["text"]) == (None, "recall")
    assert "bits_per_byte" not in record
    assert record["tokens_scored"] == 40
    message = f"path: invalid null; {last} was trained on a task, not text"
    assert refused("inspect", last) == (2, message)


def test_a_converted_folder_is_measured_like_its_checkpoint(txl, measure, checkpoint, text_file):
    options = ("--path", text_file, "--max_tokens=99", *LENGTHS)
    assert txl("convert", checkpoint, "--out=folder")[0] == 0
    record = measure(*options, path="folder")
    assert record["nats"] == measure(*options)["nats"]
    weights = Path("folder", "model.safetensors").read_bytes()
    assert record["checkpoint_sha256"] == hashlib.sha256(weights).hexdigest()


def test_a_text_that_has_changed_or_is_unknown_is_refused(refused, run_folder, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run_folder, moved)
    config = yaml.safe_load((moved / "config.yaml").read_text())
    config["data"]["path"] = str(tmp_path / "letters.txt")
    (tmp_path / "letters.txt").write_bytes(b"other" * 1000)
    (moved / "config.yaml").write_text(yaml.safe_dump(config))
    code, line = refused("evaluate", moved / "checkpoints" / "best.ckpt")
    assert code == 3
    assert re.search(r"the checkpoint's is \w{16}, this text's \w{16}; give a text with", line)
    for damage in ("[]", "[" * 100_000, "data: 5", "data: {split: [1, 2]}", "data: [a"):
        (moved / "config.yaml").write_text(damage)
        code, line = refused("evaluate", moved / "checkpoints" / "best.ckpt")
        assert (code, line[:33]) == (4, "moved/config.yaml: damaged, or no")
    (moved / "config.yaml").unlink()
    code, line = refused("evaluate", moved / "checkpoints" / "best.ckpt")
    assert code == 3
    assert line.endswith("no moved/config.yaml names its training text; give a text with --path")


def write_records(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_each_document_has_its_nats_and_its_most_surprising_token(measure, tmp_path):
    texts = ["to be or not", "", "é be", "x"]
    path = write_records(tmp_path / "a.jsonl", texts)
    files = ("--per_document=each.jsonl", "--per_token=nats.npy")
    record = measure("--path", path, *files)
    documents = [json.loads(line) for line in Path("each.jsonl").read_text().splitlines()]
    nats = np.split(np.load("nats.npy"), [12, 17])
    assert [each["document"] for each in documents] == [1, 2, 3]
    assert [each["tokens"] for each in documents] == [11, 4, 0]
    assert [each["bytes"] for each in documents] == [11, 4, 0]
    for each, nats_T in zip(documents, nats, strict=True):
        assert each["nats"] == pytest.approx(np.nansum(nats_T), abs=1e-4)
    place = documents[0]["most_surprising"]
    assert place["token"] == np.nanargmax(nats[0])
    assert place["nats"] == pytest.approx(np.nanmax(nats[0]))
    assert place["text"] == texts[0][max(place["token"] - 7, 0) : place["token"] + 1]
    assert documents[2]["most_surprising"] is None
    total = sum(each["nats"] for each in documents)
    assert record["nats"] == pytest.approx(total / 15, abs=1e-5)


def test_two_results_in_one_file_are_refused_but_not_in_one_pipe(refused, run_folder, tmp_path):
    path = write_records(tmp_path / "a.jsonl", ["to be", "or not"])
    words = ("evaluate", run_folder, "--path", path, "--per_document=b.jsonl")
    message = "out: invalid ./b.jsonl; expected another file than that of per_document"
    for _ in range(2):
        assert refused(*words, "--out=./b.jsonl") == (2, message)
        Path("b.jsonl").touch()


def test_a_record_is_once_in_a_pipe_that_is_also_the_file(run_folder, text_file):
    words = ["evaluate", run_folder, "--path", text_file, "--max_tokens=50", "--out=/dev/stdout"]
    ran = subprocess.run([sys.executable, "-m", "txl_lightning", *words], capture_output=True)
    assert len(ran.stdout.splitlines()) == 1, ran.stderr


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_document_is_in_a_line_of_its_own_whatever_characters_it_has(measure, tmp_path, end):
    texts = ["to be", "or\r\n\x0b\x85\u2028 not", "to be"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "a.jsonl").write_text(end.join(lines), encoding="utf-8", newline="")
    measure("--path", tmp_path / "a.jsonl", "--per_document=each.jsonl")
    shown = Path("each.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")
    sizes = [len(text.encode()) - 1 for text in texts]
    assert [json.loads(line)["bytes"] for line in shown] == sizes


def test_documents_that_were_not_read_have_no_line(measure, tmp_path):
    path = write_records(tmp_path / "a.jsonl", ["to be", "or not", "to be"])
    measure("--path", path, "--per_document=each.jsonl", "--max_tokens=8")
    documents = [json.loads(line) for line in Path("each.jsonl").read_text().splitlines()]
    assert [each["tokens"] for each in documents] == [4, 3]


def test_what_is_learned_may_be_kept_across_documents(measure, refused, checkpoint, tmp_path):
    texts = ["the cat sat on the mat " * 3] * 4
    path = write_records(tmp_path / "a.jsonl", texts)
    options = ("--path", path, "--cache_len=200", "--rate=0.05", "--tgt_len=32")
    each = measure(*options)
    kept = measure(*options, "--adapt_across_documents=true")
    assert kept["tokens_scored"] == each["tokens_scored"]
    assert kept["nats"] < each["nats"]
    assert kept["adaptation"]["adapt_across_documents"] is True
    code, message = refused("evaluate", checkpoint, "--adapt_across_documents=true")
    assert code == 2
    assert "adapt_across_documents: invalid True; expected false without cache_len" in message
