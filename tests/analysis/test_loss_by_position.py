"""Loss by position in the segment and by length of memory."""

import statistics

import numpy as np
import pytest
import torch

from txl_lightning import stream_nats
from txl_lightning.analysis import loss_by_position
from txl_lightning.analysis.context_length import score_context
from txl_lightning.analysis.loss_by_position import score_memory_lens
from txl_lightning.errors import NonFiniteError


def make_tokens(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(11, size=count)


def test_each_position_has_mean_and_error_of_its_own_tokens():
    nats_BGL = np.random.default_rng(0).random((2, 3, 4))
    rows = loss_by_position.average_by_position({0: nats_BGL + 1, 8: nats_BGL})
    places = [(row["mem_len"], row["position"]) for row in rows]
    assert places == [(mem_len, place) for mem_len in (0, 8) for place in (1, 2, 3, 4)]
    for row in rows:
        samples = nats_BGL[:, :, row["position"] - 1].ravel() + (row["mem_len"] == 0)
        assert row["nats"] == pytest.approx(statistics.mean(samples))
        assert row["standard_error"] == pytest.approx(statistics.stdev(samples) / 6**0.5)


def test_saved_nats_are_compared_segment_by_segment():
    nats_BGL = 100 * np.random.default_rng(0).random((2, 30, 4))
    without, with_8 = loss_by_position.average_by_memory_len({0: nats_BGL, 8: nats_BGL - 0.25})
    assert (without["saved"], without["saved_standard_error"]) == (0, 0)
    assert with_8["saved"] == pytest.approx(0.25)
    assert with_8["saved_standard_error"] == pytest.approx(0, abs=1e-9)
    assert with_8["nats"] == pytest.approx(nats_BGL.mean() - 0.25)
    error = nats_BGL.mean(axis=-1).std(ddof=1) / 60**0.5
    assert (with_8["standard_error"], with_8["tokens"]) == (pytest.approx(error), 240)


def test_every_memory_len_is_scored_on_the_same_tokens_with_a_full_memory(make_net):
    net = make_net()
    tokens = make_tokens(2 * 30 + 1)
    nats = score_memory_lens(net, tokens, [9, 0, 4, 9], batch_size=2, tgt_len=4)
    assert list(nats) == [0, 4, 9]
    for mem_len, nats_BGL in nats.items():
        lengths = {"tgt_len": 4, "mem_len": mem_len}
        expected = stream_nats(net, tokens, batch_size=2, **lengths)[:, 12:28]
        torch.testing.assert_close(torch.from_numpy(nats_BGL).flatten(1), expected)


def test_invalid_lengths_are_refused(make_net):
    options = {"mem_lens": [0, 40], "batch_size": 2, "tgt_len": 4}
    for key, value in (("mem_lens", [-1, 4]), ("batch_size", 0), ("tgt_len", 0)):
        with pytest.raises(ValueError, match=f"{key}: invalid"):
            score_memory_lens(make_net(), make_tokens(98), **options | {key: value})
    with pytest.raises(ValueError, match=r"97 tokens; batch_size 2, tgt_len 4 .* 40 need 98"):
        score_memory_lens(make_net(), make_tokens(97), **options)
    # Of the shortest text that is accepted, two segments are scored.
    assert score_memory_lens(make_net(), make_tokens(98), **options)[40].shape == (2, 2, 4)


def test_nats_that_are_not_finite_are_an_error_and_no_row_of_a_table(make_net):
    net = make_net()
    net.layers[0].attention.q_net.weight.data[0, 0] = torch.nan
    ids = np.arange(99) % 11
    with pytest.raises(NonFiniteError, match="nats are not finite: the weights of the"):
        score_memory_lens(net, ids, [0, 8], batch_size=1, tgt_len=4)
    with pytest.raises(NonFiniteError, match="nats are not finite: the weights of the"):
        score_context(net, ids, np.array([50, 60]), 9)
