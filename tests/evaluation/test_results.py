"""One evaluation in plain values."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from txl_lightning.data.store import EvalText
from txl_lightning.data.tokens import Text
from txl_lightning.data.vocab import Characters
from txl_lightning.errors import NonFiniteError
from txl_lightning.evaluation.protocols import Protocol, get_protocol
from txl_lightning.evaluation.results import evaluate
from txl_lightning.evaluation.scoring import score_text
from txl_lightning.evaluation.stats import BLOCKS, SHORTEST_BLOCK
from txl_lightning.model import EvalLengths

LETTERS = Characters("abcdefghijk")


def eval_text(ids: np.ndarray, starts: tuple[int, ...] = (0,)) -> EvalText:
    return EvalText("a", "test", "f", Text(ids, np.array(starts)), LETTERS, 1.0)


def test_mean_of_documents_is_that_of_each_alone(make_net):
    net, ids = make_net(), np.random.default_rng(0).integers(11, size=50)
    starts, expected = (0, 4, 21, 22), []
    for start, stop in zip(starts, (*starts[1:], 50), strict=True):
        part = torch.from_numpy(ids[None, start:stop])
        if stop - start > 1:
            memory = net.empty_memory(1, EvalLengths(50))
            expected.append(net.loss(part[:, :-1], part[:, 1:], memory)[0])
    record = evaluate(net, eval_text(ids, starts), Protocol(tgt_len=5, mem_len=50))
    assert record["nats"] == pytest.approx(torch.cat(expected, dim=1).mean().item())
    assert (record["tokens"], record["tokens_scored"]) == (50, 46)


def peak_bytes(net, n_token: int) -> int:
    text = eval_text(np.arange(n_token, dtype=np.uint8) % 11)
    tracemalloc.start()
    evaluate(net, text, Protocol(batch_size=4, tgt_len=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.slow
def test_text_of_any_length_is_scored_in_constant_memory(make_net):
    # What torch holds, a memory and a segment, has a fixed shape; numpy is watched here.
    net, n_token = make_net(), BLOCKS * SHORTEST_BLOCK
    peak_bytes(net, n_token // 8)  # what is made once, at first use, is not the text's
    grown = peak_bytes(net, 2 * n_token) - peak_bytes(net, n_token)
    # One byte a token would be a copy of the text; Python's own free lists grow with segments.
    assert grown < n_token // 2


def test_watchers_get_every_part_and_the_record_is_plain_json(make_net):
    text, parts = eval_text(np.arange(90) % 11), []
    record = evaluate(make_net(), text, Protocol(tgt_len=20), [parts.append])
    assert record["machine"]["cpu"]
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    positions = np.concatenate([part.position_K for part in parts])
    assert positions.tolist() == list(range(1, 90))
    nats_K = torch.cat([part.nats_K for part in parts])
    assert record["nats"] == pytest.approx(nats_K.mean().item())


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({}, 3),
        ({"batch_size": 10, "max_tokens": 20}, 7),  # rows without targets have none
        ({"warmup_len": 4}, 1),
        ({"mem_len": 0, "tgt_len": 8}, 12),
        ({"mem_len": 0, "tgt_len": 8, "ext_len": 2}, 3),
        ({"mem_len": 0, "tgt_len": 8, "warmup_len": 16}, 14),
        ({"mem_len": 0, "tgt_len": 1, "ext_len": 5, "warmup_len": 6}, 1),
    ],
    ids=str,
)
def test_cold_starts_are_targets_with_one_token_in_sight(make_net, lengths, expected):
    protocol = Protocol(**{"batch_size": 3, "tgt_len": 9} | lengths)
    record = evaluate(make_net(), eval_text(np.arange(99) % 11), protocol)
    assert record["cold_starts"] == expected


@pytest.mark.parametrize("name", ["sliding-window", "single-pass"])
def test_same_length_hides_nothing_without_a_memory(make_net, name):
    net, ids = make_net(same_length="mem_len"), np.arange(90) % 11
    protocol = replace(get_protocol(name), batch_size=1, max_tokens=None)
    others = np.concatenate([(ids[:40] + 1) % 11, ids[40:]])

    def nats_of_a_late_token(text: np.ndarray) -> float:
        parts = list(score_text(net, Text(text), protocol))
        position_N = np.concatenate([part.position_K for part in parts])
        return torch.cat([part.nats_K for part in parts])[position_N == 45].item()

    assert abs(nats_of_a_late_token(ids) - nats_of_a_late_token(others)) > 1e-6


def test_broken_weights_and_empty_texts_are_refused(make_net):
    net = make_net()
    with pytest.raises(ValueError, match="a: nothing in it is scored; it must have two tokens"):
        evaluate(net, eval_text(np.arange(3), (0, 1, 2)), Protocol(tgt_len=5))
    net.layers[0].attention.q_net.weight.data[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="a: nats nan; the network's weights are of no use"):
        evaluate(net, eval_text(np.arange(21) % 11), Protocol())
