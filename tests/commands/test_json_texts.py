"""JSON lines in commands: keys of training and evaluation, identifiers, the standard input."""

import gzip
import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from txl_lightning.checkpoints import load_checkpoint
from txl_lightning.commands.inputs import read_ids
from txl_lightning.data.store import open_store
from txl_lightning.data.vocab import Bytes

WORDS = ("to be or not", "that is the question", "whether", "tis nobler", "in the mind") * 8


def write_records(path, key="body") -> Path:
    records = [{"id": f"d{n}", "log": {key: text}} for n, text in enumerate(WORDS)]
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


@pytest.fixture
def give(monkeypatch):
    """Put a text on the standard input."""

    def put(content: str | bytes) -> None:
        content = content.encode() if isinstance(content, str) else content
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


@pytest.fixture
def documents(accepted):
    """Evaluate a run; return the record, and those of its documents."""

    def measure(run, *options) -> tuple[dict, list[dict]]:
        output = accepted("evaluate", run, "--per_document=each.jsonl", *options)
        lines = Path("each.jsonl").read_text().splitlines()
        return json.loads(output.out), [json.loads(line) for line in lines]

    return measure


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(allow_mismatch is true|from the start of the text)")
def test_a_run_reads_its_texts_and_others_under_the_key_of_training(
    accepted, refused, documents, sizes, give, tmp_path
):
    path = write_records(tmp_path / "a.jsonl")
    keys = ("--data.text_key=log.body", "--data.id_key=id")
    vocab = ("--data.vocab=bytes", "--data.data_dir=data")
    accepted("fit", *sizes, f"--data.path={path}", *keys, *vocab)
    run = "runs/version_0"
    _, own = documents(run, "--split=val")
    assert [each["id"] for each in own] == ["d36", "d37"]
    _, others = documents(run, f"--path={path}")
    assert [each["document"] for each in others] == [*range(1, 41)]
    assert "id" not in others[0]
    Path("a.log").write_text(path.read_text())
    fix = "text_key log.body reads the texts of JSON lines"
    assert fix in accepted("score", run, "--lines=a.log").err
    record, named = documents(run, f"--path={path}", "--id_key=id")
    assert [each["id"] for each in named] == [f"d{n}" for n in range(40)]
    assert record["tokens"] == sum(map(len, WORDS))
    # As inspect and recl read it.
    ids = read_ids(load_checkpoint(run), Bytes(), str(path), None)
    assert bytes(ids).decode() == "".join(WORDS)
    give(path.read_text())
    assert documents(run, "--path=-", "--id_key=id")[1] == named
    # Its key is said to have no effect only where it is given.
    for name, options, n_notice in (("plain", (), 0), ("plain", ("--text_key=a",), 1)):
        Path(name).mkdir(exist_ok=True)
        Path(name, "a.txt").write_text("to be or not\n" * 9)
        shown = accepted("evaluate", run, f"--path={name}", *options).err
        assert shown.count("text_key: no effect, as no file is JSON lines") == n_notice
    Path("mixed").mkdir()
    write_records(Path("mixed/a.jsonl"))
    Path("mixed/b.jsonl").write_text("bad\n")
    assert documents(run, "--path=mixed", "--skip_bad_lines=true")[0]["tokens"] == record["tokens"]
    # A plain text is one, whatever the texts of training were.
    Path("plain.txt").write_text("to be or not\n" * 99)
    assert json.loads(accepted("evaluate", run, "--path=plain.txt").out)["tokens"] == 1287
    code, line = refused("evaluate", run, f"--path={path}", "--text_key=text")
    assert (code, line[:60]) == (3, "a.jsonl: line 1 has no text: there is no key text; its keys:")
    for option in ("--text_key=a", "--id_key=a", "--skip_bad_lines=true"):
        key, _, value = option[2:].partition("=")
        value = "True" if value == "true" else value
        message = f"{key}: invalid {value}; expected path or corpus given"
        assert refused("evaluate", run, option) == (2, message)
    # Resuming reads the same text; another one has keys of its own.
    accepted("fit", *sizes, f"--data.path={path}", "--resume=auto", "--trainer.max_steps=6")
    changed = ("--data.path=plain.txt", "--data.allow_mismatch=true", "--trainer.max_steps=7")
    accepted("fit", *sizes, f"--ckpt_path={run}", *changed)


def test_the_standard_input_is_prepared_as_a_file_is(accepted, refused, give, tmp_path):
    path = write_records(tmp_path / "a.ndjson")
    options = ("--text_key=log.body", "--id_key=id", "--split=[0.5,0.25,0.25]")
    accepted("prepare", path, *options, "--out=file")
    give(path.read_text())
    shown = accepted("prepare", "-", *options, "--out=pipe").out
    assert shown.startswith("-: pipe\n")
    stores = [open_store(name, tmp_path / "data") for name in ("file", "pipe")]
    assert stores[0].fingerprint == stores[1].fingerprint
    assert stores[0].manifest["files"] == stores[1].manifest["files"]
    give(path.read_text())
    message = "out: missing; expected a folder, as the standard input is read once"
    assert refused("prepare", "-", *options) == (2, message)
    give("plain text")
    code, line = refused("prepare", "-", "--text_key=text", "--out=none")
    expected = "the standard input: line 1 has no text: it is not JSON (Expecting value"
    assert (code, line[: len(expected)]) == (3, expected)
    give("")
    message = "name: invalid -; expected a text on the standard input; it is empty"
    assert refused("prepare", "-", "--out=none") == (3, message)
    for option in ("--split=[1,1,1]", "--workers=0", "--out=a.ndjson/none"):
        give(path.read_text())
        assert refused("prepare", "-", "--out=none", option)[0] in (2, 6)
        # Refused before it was read.
        assert sys.stdin.buffer.tell() == 0
    # Nothing of it stays in the data directory.
    assert not [*Path().rglob("stdin*")]


@pytest.mark.parametrize(
    ("content", "options", "notice"),
    [
        ('{"text": "to be or not"}\nbad\n' * 9, ("--skip_bad_lines=true",), "left out: line 2 has"),
        ('[{"text": "to be"}]', (), "read as plain text, with all its marks; for the texts in it"),
    ],
)
def test_a_notice_about_the_standard_input_names_it(accepted, give, content, options, notice):
    give(content)
    shown = accepted("prepare", "-", "--out=store", *options).err
    assert notice in shown
    assert shown.startswith("warning: the standard input: ")
    assert "txl-" not in shown


@pytest.mark.parametrize(
    ("words", "key"),
    [(["prepare", "-", "--out=store"], "name"), (["evaluate", "RUN", "--path=-"], "path")],
)
def test_a_closed_standard_input_is_an_empty_one(
    refused, accepted, run_folder, monkeypatch, words, key
):
    monkeypatch.setattr(sys, "stdin", None)
    words = [str(run_folder) if word == "RUN" else word for word in words]
    message = f"{key}: invalid -; expected a text on the standard input; it is empty"
    assert refused(*words) == (3, message)
    monkeypatch.setattr(sys, "stdin", None)
    assert accepted("score", run_folder, "--lines=-").out == ""


def test_packed_text_on_the_standard_input_is_refused_with_what_unpacks_it(refused, give):
    give(gzip.compress(b"to be or not"))
    code, line = refused("prepare", "-", "--out=store")
    expected = "the standard input: compressed by gzip (gzip -dc); expected text in UTF-8; "
    assert (code, line[: len(expected)]) == (3, expected)


def test_json_lines_are_scored_by_their_texts_with_what_identifies_them(
    accepted, refused, run_folder, give, tmp_path
):
    lines = ["to be", "or not", "to be"]
    records = [{"id": n / 2, "body": text} for n, text in enumerate(lines)]
    content = "".join(json.dumps(each) + "\n\n" for each in records)

    def score(*options) -> list[dict]:
        shown = accepted("score", run_folder, *options)
        return [json.loads(line) for line in shown.out.splitlines()]

    give("\n".join(lines))
    plain = score("--lines=-")
    give(content)
    named = score("--lines=-", "--text_key=body", "--id_key=id")
    assert [each.pop("id") for each in named] == [0.0, 0.5, 1.0]
    assert [each.pop("line") for each in named] == [1, 3, 5]
    assert named == [{key: each[key] for key in ("nats", "tokens")} for each in plain]
    Path("a.ndjson").write_text(content)
    code, line = refused("score", run_folder, "--lines=a.ndjson")
    assert (code, line[:40]) == (3, "a.ndjson: line 1 has no text: there is n")
    skipped = accepted(
        "score", run_folder, "--lines=a.ndjson", "--id_key=body", "--skip_bad_lines=true"
    )
    assert (skipped.out, skipped.err.count("left out: line ")) == ("", 3)


def test_json_lines_that_are_scored_as_plain_text_are_said_to_be(accepted, run_folder, give):
    give('{"text": "a"}\n')
    shown = accepted("score", run_folder, "--lines=-")
    assert json.loads(shown.out)["tokens"] == 14
    fix = "line 1 is read as plain text; text_key text reads the texts of JSON lines"
    assert fix in shown.err


@pytest.mark.parametrize(
    ("changed", "warns"),
    [
        ({"path": "a.jsonl.gz"}, True),
        ({"path": ["a.txt", "b.NDJSON", "c.txt"]}, True),
        ({"text_key": "body"}, True),
        ({"document_unit": "lines"}, True),
        ({"path": "a.jsonl", "document_unit": "files"}, True),
        ({"path": "a.jsonl", "document_unit": "none"}, False),
        ({"document_unit": "files"}, False),
        ({}, False),
    ],
)
def test_lines_are_scored_with_a_warning_where_training_read_each_as_a_document(
    accepted, run_folder, give, tmp_path, changed, warns
):
    run = shutil.copytree(run_folder, tmp_path / "copy")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"] |= changed
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    give("to be\n")
    shown = accepted("score", run, "--lines=-").err
    assert ("each record was a document of its own" in shown) == warns


def test_bad_lines_of_a_copy_are_said_to_be_in_what_was_given(accepted, refused, give, tmp_path):
    content = write_records(tmp_path / "a.jsonl").read_text() + "null\n"
    options = ("--text_key=log.body", "--vocab=bytes", "--split=[0.5,0.25,0.25]")
    packed = Path("b.jsonl.gz")
    packed.write_bytes(gzip.compress(content.encode()))
    found = "line 41 has no text: it is null"
    code, line = refused("prepare", packed, *options)
    assert (code, line.partition(";")[0]) == (3, f"{packed}: {found}")
    skip = "--skip_bad_lines=true"
    shown = accepted("prepare", packed, *options, skip).err
    assert f"warning: {packed}: left out: {found}" in shown
    give(content)
    shown = accepted("prepare", "-", *options, skip, "--out=pipe").err
    assert f"warning: the standard input: left out: {found}" in shown


@pytest.mark.parametrize("content", [b"caf\xe9 au lait\n", b"a\0b" * 9, b'{"a": 1}\n' * 9])
def test_prepare_refuses_what_is_no_text_unless_bytes_are_asked_for(
    accepted, refused, tmp_path, content
):
    path = tmp_path / "a.dat"
    path.write_bytes(content)
    code, line = refused("prepare", path)
    assert (code, line.partition(":")[0]) == (3, "a.dat")
    shown = accepted("prepare", path, "--vocab=bytes").out
    assert "256 bytes in the vocabulary" in shown


@pytest.mark.parametrize("option", ["--text_key=a", "--skip_bad_lines=true"])
def test_settings_of_json_lines_are_refused_for_lists(refused, run_folder, option):
    code, line = refused("score", run_folder, "--candidates=a.jsonl", option)
    key = option[2:].partition("=")[0]
    assert (code, line.partition(":")[0]) == (2, key)
    assert line.endswith("expected null or false without JSON lines as lines")


@pytest.mark.parametrize(
    ("name", "said"), [("a.txt.gz", "a.txt.gz"), ("b/a.txt.gz", "b/a.txt.gz/a.txt")]
)
def test_what_is_found_while_a_packed_text_is_encoded_is_said_of_the_given_file(
    refused, name, said
):
    """Beyond the first bytes, from which its kind is known."""
    Path("b").mkdir()
    text = b"a line of text\n" * 1000
    Path(name).write_bytes(gzip.compress(text + b"\xff" + text))
    code, line = refused("prepare", Path(name).parts[0], "--out=prepared")
    assert (code, line.partition(";")[0]) == (3, f"{said}: byte 15000 is not UTF-8 text")
