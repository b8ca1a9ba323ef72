"""The result of an evaluation: plain values, constant memory, confidence intervals."""

import json
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from txl_lightning.data.store import EvalText
from txl_lightning.data.tokens import TextTokens
from txl_lightning.data.vocab import Characters
from txl_lightning.errors import NonFiniteError
from txl_lightning.evaluation import scoring
from txl_lightning.evaluation.protocols import Protocol, get_protocol
from txl_lightning.evaluation.scoring import NatsAccumulator, TokenNats, evaluate
from txl_lightning.model import EvalLengths
from txl_lightning.model.reading import convert_nats


def eval_text(ids: np.ndarray, starts: tuple[int, ...] = (0,)) -> EvalText:
    return EvalText(
        "a", "test", "f", TextTokens(ids, np.array(starts)), Characters("abcdefghijk"), 1.0
    )


def test_mean_of_documents_is_that_of_each_alone(make_net):
    net = make_net()
    ids = np.random.default_rng(0).integers(11, size=50)
    starts = (0, 4, 21, 22)
    expected = []
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
    # torch's memory and segment have fixed shapes; this measures numpy's.
    net = make_net()
    n_token = scoring.BLOCKS * scoring.SHORTEST_BLOCK
    peak_bytes(net, n_token // 8)  # allocations of the first use do not count
    grown = peak_bytes(net, 2 * n_token) - peak_bytes(net, n_token)
    # One byte per token would be a copy of the text; Python's own free lists grow with segments.
    assert grown < n_token // 2


def test_nats_of_tokens_are_at_their_positions_and_the_record_is_plain_json(make_net):
    nats_N = np.full(90, np.nan)
    counts = []
    record = evaluate(
        make_net(), eval_text(np.arange(90) % 11), Protocol(tgt_len=20), nats_N, counts.append
    )
    assert counts == [20, 20, 20, 20, 9]
    assert np.isnan(nats_N).nonzero()[0].tolist() == [0]
    assert record["nats"] == pytest.approx(nats_N[1:].mean())
    assert record["machine"]["cpu"]
    assert json.loads(json.dumps(record, allow_nan=False)) == record


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({}, 3),
        ({"batch_size": 10, "max_tokens": 20}, 7),  # rows without targets have none
        ({"warmup_len": 4}, 1),
        ({"mem_len": 0, "tgt_len": 8}, 12),
        ({"mem_len": 0, "tgt_len": 8, "ext_len": 2}, 3),
        ({"mem_len": 0, "tgt_len": 8, "warmup_len": 16}, 12),
        # Also where the text begins amid a segment.
        ({"mem_len": 0, "tgt_len": 8, "warmup_len": 4}, 13),
        ({"mem_len": 0, "tgt_len": 1, "ext_len": 5, "warmup_len": 6}, 1),
    ],
    ids=str,
)
def test_cold_starts_are_targets_with_a_context_of_one_token(make_net, lengths, expected):
    protocol = Protocol(**{"batch_size": 3, "tgt_len": 9} | lengths)
    record = evaluate(make_net(), eval_text(np.arange(99) % 11), protocol)
    assert record["cold_starts"] == expected


@pytest.mark.parametrize("name", ["sliding-window", "single-pass"])
def test_same_length_hides_nothing_without_a_memory(make_net, name):
    net = make_net(same_length="mem_len")
    ids = np.arange(90) % 11
    protocol = replace(get_protocol(name), batch_size=1, max_tokens=46)
    nats_2N = np.zeros((2, 90))
    for nats_N, text in zip(nats_2N, (ids, [*(ids[:40] + 1) % 11, *ids[40:]]), strict=True):
        evaluate(net, eval_text(np.array(text)), protocol, nats_N)
    assert abs(nats_2N[0, 45] - nats_2N[1, 45]) > 1e-6


def test_broken_weights_and_empty_texts_are_refused(make_net):
    net = make_net()
    with pytest.raises(ValueError, match="a: no token is scored; expected a text of two tokens"):
        evaluate(net, eval_text(np.arange(3), (0, 1, 2)), Protocol(tgt_len=5))
    net.layers[0].attention.q_net.weight.data[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="a: nats nan; the network's weights are invalid"):
        evaluate(net, eval_text(np.arange(21) % 11), Protocol())


def accumulate(nats_N: np.ndarray, batch_size: int = 1) -> NatsAccumulator:
    """Add up tokens that are read in rows, a few at a time."""
    total = NatsAccumulator(len(nats_N))
    position_BT = np.arange(len(nats_N)).reshape(batch_size, -1)
    for part in np.array_split(position_BT, 7, axis=1):
        total.add(TokenNats(part.ravel(), torch.from_numpy(nats_N[part.ravel()])))
    return total


def test_mean_is_that_of_all_tokens_whatever_the_order_of_reading():
    nats_N = np.random.default_rng(0).exponential(2.0, 10_000)
    one = accumulate(nats_N)
    ten = accumulate(nats_N, 10)
    assert one.n_scored == 10_000
    assert [one.mean, ten.mean] == pytest.approx([nats_N.mean()] * 2, abs=1e-12)
    assert ten.interval() == pytest.approx(one.interval(), abs=1e-12)


def test_half_precision_is_added_up_in_float64_in_a_thousand_blocks_at_most():
    total = NatsAccumulator(100_000)
    total.add(TokenNats(np.arange(100_000), torch.full((100_000,), 2.5, dtype=torch.bfloat16)))
    assert total.mean == 2.5
    assert len(NatsAccumulator(10**12).nats) == len(total.nats) == 1000


def test_interval_of_independent_tokens_is_the_textbooks():
    nats_N = np.random.default_rng(0).normal(3.0, 2.0, 200_000)
    low, high = accumulate(nats_N).interval()
    assert (low + high) / 2 == pytest.approx(nats_N.mean(), abs=2e-3)
    assert high - low == pytest.approx(2 * 1.96 * 2.0 / math.sqrt(200_000), rel=0.1)


def test_interval_is_wider_if_neighboring_tokens_are_correlated():
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.normal(3.0, 2.0, 2000), 50)
    narrow, wide = (np.diff(accumulate(n).interval()) for n in (rng.permutation(alike), alike))
    assert wide > 4 * narrow


def test_block_counts_for_as_many_tokens_as_it_has():
    # Half of the tokens are in a tenth of the blocks, and have other nats.
    total = NatsAccumulator(100 * 64)
    block = np.arange(64)
    for index in range(100):
        count, nats = (64, 5.0) if index % 10 == 0 else (7, 1.0)
        total.add(TokenNats(index * 64 + block[:count], torch.full((count,), nats)))
    low, high = total.interval()
    assert 2 < low < total.mean < high


def test_interval_needs_two_blocks_in_which_something_is_scored():
    total = NatsAccumulator(64 * 10)
    total.add(TokenNats(np.arange(64), torch.ones(64)))
    summary = total.summary("byte", 64.0)["interval"]
    assert (summary["nats"], summary["bits_per_byte"], summary["blocks"]) == (None, None, 1)
    total.add(TokenNats(np.arange(64, 128), torch.ones(64)))
    assert total.interval() == [1.0, 1.0]


def test_readings_are_nats_in_common_units():
    values = convert_nats(math.log(2) * 3, "byte")
    assert values["bits_per_byte"] == pytest.approx(3)
    assert values["perplexity"] == pytest.approx(8)
    assert math.isfinite(convert_nats(1e9, "byte")["perplexity"])
