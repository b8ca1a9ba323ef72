"""The choice of an adaptation on another text, within a time."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from txl_lightning.data.tokens import Text
from txl_lightning.evaluation import tuning
from txl_lightning.evaluation.protocols import Protocol
from txl_lightning.evaluation.tuning import choose_adaptation, score_in_turns


@pytest.fixture
def text():
    """A random block that is repeated."""
    return Text(np.tile(np.random.default_rng(1).integers(11, size=50), 6))


def measure(net, text, protocol) -> float:
    [nats] = score_in_turns(net, text, [protocol], 1, lambda: 0)[1]
    return nats


def test_cache_and_rate_are_the_best_of_all_pairs_and_then_of_all_rates(
    make_net, text, monkeypatch
):
    monkeypatch.setattr(tuning, "CACHE_LEN", 100)
    net = make_net()
    pairs = [{"cache_theta": t, "cache_weight": w} for t in tuning.THETAS for w in tuning.WEIGHTS]
    caches = [Protocol(cache_len=100, tgt_len=20, **pair) for pair in pairs]
    cache = min(caches, key=lambda way: measure(net, text, way))
    rates = [replace(cache, rate=rate) for rate in tuning.RATES]
    best = min(rates, key=lambda way: measure(net, text, way))
    chosen = choose_adaptation(net, text, Protocol(tgt_len=20, max_tokens=30), 9, lambda: 0)
    assert chosen.given == best.given
    assert (chosen.cache_len, chosen.max_tokens) == (100, 30)
    assert measure(net, text, best) < 0.7 * measure(net, text, Protocol(tgt_len=20))


def test_what_is_given_stays(make_net, text):
    given = {"cache_len": 50, "cache_theta": 9.0, "rate": 0.0}
    chosen = choose_adaptation(make_net(), text, Protocol(**given), 9, lambda: 0)
    assert chosen.given == given | {"cache_weight": 0.6}
    chosen = choose_adaptation(make_net(), text, Protocol(cache_len=0), 9, lambda: 0)
    assert chosen.given.keys() == {"cache_len", "rate"}


def test_rows_and_networks_without_states_have_what_they_can(make_net, own_package, text):
    chosen = choose_adaptation(make_net(), text, Protocol(batch_size=2), 9, lambda: 0)
    assert (chosen.rate, chosen.cache_len) == (0, 20_000)
    net = own_package.MyConfig(n_token=11, width=8).build()
    chosen = choose_adaptation(net, text, Protocol(), 9, lambda: 0)
    assert (chosen.rate > 0, chosen.cache_len) == (True, 0)


def test_a_quarter_of_the_time_is_for_the_cache_and_the_rest_for_the_rate(
    make_net, text, monkeypatch
):
    ways = [Protocol(tgt_len=10), Protocol(tgt_len=10, rate=0.1)]
    # The clock is read at the beginning and after each segment.
    assert score_in_turns(make_net(), text, ways, 3.0, count().__next__)[0] == 30
    given = []

    def read(model, tokens, ways, seconds, clock):
        given.append(seconds)
        yield [torch.zeros(1)] * len(ways)

    monkeypatch.setattr(tuning, "read_in_turns", read)
    for fields in ({}, {"rate": 0.0}, {"cache_len": 0}):
        choose_adaptation(make_net(), text, Protocol(**fields), 90)
    assert given == [22.5, 67.5, 90, 90]


def test_a_rate_that_breaks_the_network_is_not_chosen(make_net, text, monkeypatch):
    monkeypatch.setattr(tuning, "RATES", (1e5, 0.1))
    chosen = choose_adaptation(make_net(), text, Protocol(tgt_len=20, cache_len=0), 9, lambda: 0)
    assert chosen.rate == 0.1
