"""Nats counted in constant memory, and how sure their mean is."""

import math

import numpy as np
import pytest
import torch

from txl_lightning.evaluation.scoring import TokenNats
from txl_lightning.evaluation.stats import NatsAccumulator, PerToken


def accumulate(nats_N: np.ndarray, batch_size: int = 1) -> NatsAccumulator:
    """Add up tokens that are read in rows, a few at a time."""
    total = NatsAccumulator(len(nats_N))
    position_BT = np.arange(len(nats_N)).reshape(batch_size, -1)
    for part in np.array_split(position_BT, 7, axis=1):
        total.add(TokenNats(part.ravel(), torch.from_numpy(nats_N[part.ravel()])))
    return total


def test_mean_is_that_of_all_tokens_whatever_the_order_of_reading():
    nats_N = np.random.default_rng(0).exponential(2.0, 10_000)
    one, ten = accumulate(nats_N), accumulate(nats_N, 10)
    assert one.n_scored == 10_000
    assert one.mean == pytest.approx(nats_N.mean(), abs=1e-12)
    assert ten.mean == pytest.approx(one.mean, abs=1e-12)
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


def test_interval_is_wider_where_neighbours_are_alike():
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.normal(3.0, 2.0, 2000), 50)
    narrow, wide = (np.diff(accumulate(n).interval()) for n in (rng.permutation(alike), alike))
    assert wide > 4 * narrow


def test_block_counts_for_as_many_tokens_as_it_has():
    # Half of the tokens are in a tenth of the blocks, and have other nats.
    total, block = NatsAccumulator(100 * 64), np.arange(64)
    for index in range(100):
        count, nats = (64, 5.0) if index % 10 == 0 else (7, 1.0)
        total.add(TokenNats(index * 64 + block[:count], torch.full((count,), nats)))
    low, high = total.interval()
    assert 2 < low < total.mean < high


def test_interval_needs_two_blocks_in_which_something_is_scored():
    assert accumulate(np.ones(63)).interval() is None
    total = NatsAccumulator(64 * 10)
    total.add(TokenNats(np.arange(64), torch.ones(64)))
    assert total.interval() is None
    assert total.describe()["blocks"] == 1
    total.add(TokenNats(np.arange(64, 128), torch.ones(64)))
    assert total.interval() == (1.0, 1.0)


def test_per_token_file_has_nats_at_their_tokens_positions(tmp_path):
    per_token = PerToken(tmp_path / "nats.npy", 5)
    per_token.add(TokenNats(np.array([4, 1]), torch.tensor([0.5, 2.5])))
    expected = [np.nan, 2.5, np.nan, np.nan, 0.5]
    assert np.load(tmp_path / "nats.npy").tolist() == pytest.approx(expected, nan_ok=True)
