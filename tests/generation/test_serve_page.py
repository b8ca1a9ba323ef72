"""docs/serve.md: its code runs, and its service goes on after a kill with the same numbers."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from txl_lightning import Sessions, TransformerXLConfig, stream_nats
from txl_lightning.checkpoints import load, save_folder
from txl_lightning.data.vocab import Bytes

LINES = [f"{n} {word}\n" for n, word in enumerate(("start", "open é", "fail", "stop") * 2500)]
# A service without a web server: it saves its state after some lines, and prints their nats.
SERVICE = """
import json, sys
from pathlib import Path
from txl_lightning import Adaptation, Sessions, load

run, state, every, cache_len = sys.argv[1:]
sessions = Sessions(*load(run))
is_new = not Path(state).exists()
session = sessions.open(Adaptation(cache_len=int(cache_len) or None)) if is_new else None
session = session or sessions.restore(state)
print(json.dumps(session.n_character), flush=True)
for number, line in enumerate(sys.stdin, 1):
    print(json.dumps(session.feed(line)), flush=True)
    if number % int(every) == 0:
        session.save(state)
"""


@pytest.fixture
def run(tmp_path):
    net = TransformerXLConfig(n_layer=1, n_head=2, d_model=8, mem_len=8).build()
    save_folder(net, tmp_path / "RUN", Bytes())
    return tmp_path / "RUN"


@pytest.fixture
def blocks(repository):
    return re.findall(r"```python\n(.*?)```", (repository / "docs" / "serve.md").read_text(), re.S)


def test_first_code_of_the_page_runs(run, blocks, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    exec(blocks[0], {})
    assert capsys.readouterr().out.startswith("0 1 't' None\n")


def test_records_of_the_page_have_the_nats_of_texts_that_are_read_alone(run, blocks, monkeypatch):
    monkeypatch.chdir(run.parent)
    names = {}
    for block in blocks[:2]:
        exec(block, names)
    texts = ["to be", "or not to be, that is", "é"]
    model, vocab = load("RUN")
    how = {"batch_size": 1, "tgt_len": 5, "same_length": "mem_len"}
    expected = [stream_nats(model, vocab.encode_text(text), **how).sum().item() for text in texts]
    assert names["score_records"](texts) == pytest.approx(expected, rel=1e-4)


def test_service_of_the_page_reads_saves_and_continues(run, blocks, monkeypatch):
    testclient = pytest.importorskip("fastapi.testclient")
    states = run.parent / "states"
    monkeypatch.setenv("RUN", str(run))
    monkeypatch.setenv("STATES", str(states))
    session = Sessions(*load(run)).open()
    for part in ("to be ", "or not"):
        # A new process each time.
        names = {"__name__": "service"}
        exec(blocks[2], names)
        client = testclient.TestClient(names["app"])
        answer = client.post("/anna/feed", params={"text": part})
        assert_same([each.values() for each in answer.json()], session.feed(part))
        about = client.get("/anna", params={"max_new_tokens": 3}).json()
        assert about["n_character"] == session.n_character
        assert client.post("/bob/feed", params={"text": "a"}).json()[0]["nats"] is None
        assert client.get("/a.b").status_code == 422
        client.close()
        (states / "bob.safetensors").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(("n_line", "cache_len"), [(10_000, 0), (300, 50)])
def test_a_service_that_is_killed_goes_on_with_the_same_numbers(run, n_line, cache_len):
    lines = LINES[:n_line]
    state = run.parent / "state.safetensors"
    command = [sys.executable, "-c", SERVICE, run, state, "100", str(cache_len)]
    whole = run.parent / "whole.safetensors"
    expected = subprocess.run(
        [*command[:4], whole, "100000", str(cache_len)],
        input="".join(lines), capture_output=True, text=True, check=True,
    ).stdout.splitlines()[1:]  # fmt: skip
    found = ""
    n_kill = 0
    while found.count("\n") < n_line:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            begin = int(process.stdout.readline())
            # What was answered after the last save is read again.
            n_begin = count_lines(lines, begin)
            answers = []
            for line in lines[n_begin : n_begin + n_line // 2 + 50]:
                process.stdin.write(line)
                process.stdin.flush()
                answers.append(process.stdout.readline())
            if n_begin + len(answers) < n_line:
                os.kill(process.pid, signal.SIGKILL)
                n_kill += 1
        found = "".join(found.splitlines(keepends=True)[:n_begin] + answers)
    assert n_kill >= 1
    for line, other in zip(found.splitlines(), expected, strict=True):
        assert_same(json.loads(line), json.loads(other))


def assert_same(tokens, others):
    """Assert that tokens and their places are equal, and nats but for the order of sums."""
    ids, texts, nats, *places = zip(*tokens, strict=True)
    other_ids, other_texts, other_nats, *other_places = zip(*others, strict=True)
    assert (ids, texts, places) == (other_ids, other_texts, other_places)
    # The first token of a session has none.
    known = [each for each in nats if each is not None]
    other_known = [each for each in other_nats if each is not None]
    assert len(known) == len(other_known)
    assert known == pytest.approx(other_known, rel=1e-5, abs=1e-5)


def count_lines(lines, n_character: int) -> int:
    """Return how many lines have so many characters."""
    n_line = 0
    while n_character:
        n_character -= len(lines[n_line])
        n_line += 1
    return n_line
