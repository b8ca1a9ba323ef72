"""One evaluation in plain values."""

import json
import subprocess
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from txl_lightning.data.eval_text import EvalText
from txl_lightning.data.tokens import Text
from txl_lightning.data.vocab import Characters
from txl_lightning.errors import NonFiniteError
from txl_lightning.evaluation import Protocol, environment, evaluate, text_parts
from txl_lightning.evaluation.protocols import get_protocol
from txl_lightning.evaluation.stats import BLOCKS, SHORTEST_BLOCK
from txl_lightning.model import EvalLengths

LETTERS = Characters("abcdefghijk")


def measured(ids: np.ndarray, starts: tuple[int, ...] = (0,)) -> EvalText:
    return EvalText("a", "test", "f", Text(ids, np.array(starts)), LETTERS, 1.0)


def test_documents_are_scored_as_if_each_were_alone(make_net):
    net, ids = make_net(), np.random.default_rng(0).integers(11, size=50)
    starts, expected = (0, 4, 21, 22), []
    for start, stop in zip(starts, (*starts[1:], 50), strict=True):
        part = torch.from_numpy(ids[None, start:stop])
        if stop - start > 1:
            expected.append(
                net.loss(part[:, :-1], part[:, 1:], net.empty_memory(1, EvalLengths(50)))[0]
            )
    record = evaluate(net, measured(ids, starts), Protocol(tgt_len=5, mem_len=50))
    assert record["nats"] == pytest.approx(torch.cat(expected, dim=1).mean().item())
    assert (record["tokens"], record["tokens_scored"]) == (50, 46)


def test_a_record_is_one_line_of_json(make_net):
    record = evaluate(make_net(), measured(np.arange(90) % 11), Protocol(batch_size=2, tgt_len=9))
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def peak_bytes(net, n_token: int) -> int:
    text = measured(np.arange(n_token, dtype=np.uint8) % 11)
    tracemalloc.start()
    try:
        evaluate(net, text, Protocol(batch_size=4, tgt_len=1000))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_text_of_any_length_is_scored_in_constant_memory(make_net):
    """What torch holds, a memory and a segment, has a fixed shape; numpy is watched here."""
    net, n_token = make_net(), BLOCKS * SHORTEST_BLOCK
    peak_bytes(net, n_token // 8)  # what is made once, at first use, is not the text's
    grown = peak_bytes(net, 2 * n_token) - peak_bytes(net, n_token)
    # One byte a token would be a copy of the text; Python's own free lists grow with segments.
    assert grown < n_token // 2


def test_those_who_watch_are_given_every_part(make_net):
    seen = []
    text, how = measured(np.arange(90) % 11), Protocol(tgt_len=20)
    record = evaluate(make_net(), text, how, [seen.append])
    assert np.concatenate([part.at_K for part in seen]).tolist() == list(range(1, 90))
    nats_K = torch.cat([part.nats_K for part in seen])
    assert record["nats"] == pytest.approx(nats_K.mean().item())


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, 3),
        ({"warmup_len": 4}, 1),
        ({"mem_len": 0, "tgt_len": 8}, 12),
        ({"mem_len": 0, "tgt_len": 8, "ext_len": 2}, 3),
        ({"mem_len": 0, "tgt_len": 8, "warmup_len": 16}, 14),
        ({"mem_len": 0, "tgt_len": 1, "ext_len": 5, "warmup_len": 6}, 1),
    ],
    ids=str,
)
def test_cold_starts_are_the_tokens_that_are_scored_with_nothing_before_them(
    make_net, how, expected
):
    read = Protocol(**{"batch_size": 3, "tgt_len": 9} | how)
    record = evaluate(make_net(), measured(np.arange(99) % 11), read)
    assert record["cold_starts"] == expected


def test_rows_in_which_nothing_is_scored_do_not_start(make_net):
    record = evaluate(make_net(), measured(np.arange(21) % 11), Protocol(batch_size=10))
    assert record["cold_starts"] == 7


def test_broken_weights_are_no_number(make_net):
    net = make_net()
    net.layers[0].attention.q_net.weight.data[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="a: nats nan; the network's weights are of no use"):
        evaluate(net, measured(np.arange(21) % 11), Protocol())


@pytest.mark.parametrize("protocol", ["sliding-window", "single-pass"])
def test_without_a_memory_same_length_hides_nothing(make_net, protocol):
    """What was trained to see equally much would otherwise see nothing but the token itself."""
    net, ids = make_net(same_length="mem_len"), np.arange(90) % 11
    how = replace(get_protocol(protocol), batch_size=1, limit=None)
    others = np.concatenate([(ids[:40] + 1) % 11, ids[40:]])

    def nats_of_a_late_token(read: np.ndarray) -> float:
        parts = list(text_parts(net, Text(read), how))
        at_N = np.concatenate([part.at_K for part in parts])
        return torch.cat([part.nats_K for part in parts])[at_N == 45].item()

    assert abs(nats_of_a_late_token(ids) - nats_of_a_late_token(others)) > 1e-6


def test_a_text_with_nothing_to_score_is_refused(make_net):
    with pytest.raises(ValueError, match="a: nothing in it is scored; it must have two tokens"):
        evaluate(make_net(), measured(np.arange(3), (0, 1, 2)), Protocol(tgt_len=5))


def test_the_commit_is_that_of_the_code_and_says_when_files_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    assert environment.commit() is None

    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *name, "-C", str(tmp_path), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert environment.commit() is None
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-m", "a")
    git("tag", "v1")
    assert environment.commit() == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("b")
    assert environment.commit() == git("rev-parse", "HEAD") + "-dirty"


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert environment.commit() is None


def test_a_processor_has_a_name():
    assert environment.cpu_name()
