"""Nats counted in constant memory, and how sure their mean is."""

import math

import numpy as np
import pytest
import torch

from txl_lightning.evaluation import PerToken
from txl_lightning.evaluation.scoring import TokenNats
from txl_lightning.evaluation.stats import NatsAccumulator


def counted(nats_N: np.ndarray, batch_size: int = 1) -> NatsAccumulator:
    """The tally of tokens that are read in rows, a few at a time."""
    tally = NatsAccumulator(len(nats_N))
    at_BT = np.arange(len(nats_N)).reshape(batch_size, -1)
    for part in np.array_split(at_BT, 7, axis=1):
        tally.add(TokenNats(part.ravel(), torch.from_numpy(nats_N[part.ravel()])))
    return tally


def test_the_mean_is_that_of_all_tokens():
    nats_N = np.random.default_rng(0).exponential(2.0, 10_000)
    tally = counted(nats_N)
    assert tally.n_scored == 10_000
    assert tally.mean == pytest.approx(nats_N.mean(), abs=1e-12)


def test_half_precision_is_added_up_in_float64():
    tally = NatsAccumulator(100_000)
    tally.add(TokenNats(np.arange(100_000), torch.full((100_000,), 2.5, dtype=torch.bfloat16)))
    assert tally.mean == 2.5


def test_the_order_of_reading_changes_nothing():
    nats_N = np.random.default_rng(0).exponential(2.0, 10_000)
    one, ten = counted(nats_N), counted(nats_N, 10)
    assert ten.mean == pytest.approx(one.mean, abs=1e-12)
    assert ten.interval() == pytest.approx(one.interval(), abs=1e-12)
    assert one.interval() == one.interval()


def test_the_interval_of_independent_tokens_is_the_textbooks():
    nats_N = np.random.default_rng(0).normal(3.0, 2.0, 200_000)
    low, high = counted(nats_N).interval()
    assert (low + high) / 2 == pytest.approx(nats_N.mean(), abs=2e-3)
    assert high - low == pytest.approx(2 * 1.96 * 2.0 / math.sqrt(200_000), rel=0.1)


def test_tokens_that_are_like_their_neighbours_make_a_wider_interval():
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.normal(3.0, 2.0, 2000), 50)
    narrow, wide = (np.diff(counted(n).interval()) for n in (rng.permutation(alike), alike))
    assert wide > 4 * narrow


def test_a_block_counts_for_as_many_tokens_as_it_has():
    """Half of the tokens stand in a tenth of the blocks, and have other nats."""
    tally, block = NatsAccumulator(100 * 64), np.arange(64)
    for index in range(100):
        count, nats = (64, 5.0) if index % 10 == 0 else (7, 1.0)
        tally.add(TokenNats(index * 64 + block[:count], torch.full((count,), nats)))
    low, high = tally.interval()
    assert low < tally.mean < high
    assert low > 2


def test_a_longer_text_takes_no_more_memory():
    assert len(NatsAccumulator(10**12).nats) == len(NatsAccumulator(10**6).nats) == 1000


def test_a_text_of_one_block_has_no_interval():
    assert counted(np.ones(63)).interval() is None
    assert counted(np.ones(65)).interval() == (1.0, 1.0)


def test_blocks_in_which_nothing_is_scored_do_not_count():
    tally = NatsAccumulator(64 * 10)
    tally.add(TokenNats(np.arange(64), torch.ones(64)))
    assert tally.interval() is None
    assert tally.described()["blocks"] == 1
    tally.add(TokenNats(np.arange(64, 128), torch.ones(64)))
    assert tally.interval() == (1.0, 1.0)


def test_nats_are_kept_where_their_tokens_stand(tmp_path):
    kept = PerToken(tmp_path / "nats.npy", 5)
    kept.add(TokenNats(np.array([4, 1]), torch.tensor([0.5, 2.5])))
    assert np.load(tmp_path / "nats.npy").tolist() == pytest.approx(
        [np.nan, 2.5, np.nan, np.nan, 0.5], nan_ok=True
    )
