"""The choice of an adaptation on another text, within a limit of time or tokens."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from txl_lightning import stream_nats
from txl_lightning.data.tokens import TextTokens
from txl_lightning.evaluation import tuning
from txl_lightning.evaluation.protocols import Protocol, get_protocol
from txl_lightning.evaluation.tuning import Limit, choose_adaptation, score_in_turns
from txl_lightning.model.adaptation import USUAL, Adaptation

ALL = Limit()
"""Reads the whole text."""


@pytest.fixture
def text():
    """A random block that is repeated."""
    return TextTokens(np.tile(np.random.default_rng(1).integers(11, size=50), 6))


def choose(net, text, limit=ALL, **fields) -> Adaptation:
    given = {name: fields.pop(name) for name in USUAL if name in fields}
    protocol = adapt(Protocol(**fields), **given)
    return choose_adaptation(net, text, protocol, limit).adaptation


def adapt(protocol, **values) -> Protocol:
    """Return a protocol with other values of its adaptation."""
    return replace(protocol, adaptation=replace(protocol.adaptation, **values))


def measure(net, text, protocol, limit=ALL) -> float:
    [nats] = score_in_turns(net, text, [protocol], limit)[1]
    return nats


def test_cache_and_rate_are_the_best_of_all_pairs_and_then_of_all_rates(
    make_net, text, monkeypatch
):
    monkeypatch.setattr(tuning, "CACHE_LEN", 100)
    monkeypatch.setattr(tuning, "THETAS", (2.0, 22.0, 60.0))
    monkeypatch.setattr(tuning, "WEIGHTS", (0.0, 0.3, 0.75))
    net = make_net()
    pairs = [{"cache_theta": t, "cache_weight": w} for t in tuning.THETAS for w in tuning.WEIGHTS]
    caches = [adapt(Protocol(tgt_len=20), cache_len=100, **pair) for pair in pairs]
    cache = min(caches, key=lambda way: measure(net, text, way))
    rates = [adapt(cache, rate=rate) for rate in tuning.RATES]
    best = min(rates, key=lambda way: measure(net, text, way))
    chosen = choose(net, text, tgt_len=20, max_tokens=30)
    assert chosen == best.adaptation
    assert chosen.cache_len == 100
    assert measure(net, text, best) < 0.7 * measure(net, text, Protocol(tgt_len=20))


@pytest.mark.parametrize(
    "fields",
    [
        {"tgt_len": 7, "batch_size": 2},
        {"mem_len": 0, "warmup_len": 64, "tgt_len": 16, "batch_size": 2},
        {"mem_len": 0, "tgt_len": 4, "ext_len": 9, "warmup_len": 30, "batch_size": 3},
    ],
    ids=str,
)
def test_nats_of_each_pair_are_those_of_an_evaluation(make_net, text, monkeypatch, fields):
    """Also where warm-up and documents are not scored."""
    net = make_net()
    parts = []
    text = TextTokens(text.ids, np.array([0, 1, 40, 41, 150]))
    way = adapt(Protocol(**fields), cache_len=30)
    for network_K, cache_EK, is_seen_K in tuning.read_caches(net, text, way, [3.0, 60.0]):
        mixed_EK = tuning.mix_logp(-network_K, cache_EK, 0.3, is_seen_K)
        parts.append(torch.stack([network_K, *-mixed_EK]))
    ways = [way, *(adapt(way, cache_theta=theta, cache_weight=0.3) for theta in (3.0, 60.0))]
    ways[0] = adapt(way, cache_len=0)
    expected = [torch.stack(each) for each in tuning.read_in_turns(net, text, ways)]
    assert sum(each.size(1) for each in expected) > 200
    torch.testing.assert_close(torch.cat(parts, 1), torch.cat(expected, 1))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sliding-window", {"batch_size": 1, "window": 8}),
        ("sliding-window", {"batch_size": 3, "window": 9}),
        ("segments", {"mem_len": 0, "warmup_len": 64, "tgt_len": 16, "batch_size": 2}),
        ("segments", {"cache_len": 0, "mem_len": 0, "tgt_len": 2, "ext_len": 9, "warmup_len": 20}),
        ("single-pass", {}),
    ],
    ids=str,
)
def test_a_protocol_without_memory_is_chosen_for_as_it_is_evaluated(
    make_net, text, monkeypatch, name, options
):
    monkeypatch.setattr(tuning, "THETAS", (60.0,))
    monkeypatch.setattr(tuning, "WEIGHTS", (0.0, 0.75))
    monkeypatch.setattr(tuning, "RATES", (0.0, 0.1))
    net = make_net()
    limit = Limit(tokens=50)
    given = {"cache_len": options.pop("cache_len")} if "cache_len" in options else {}
    protocol = adapt(get_protocol(name, **options), **given)
    chosen = choose_adaptation(net, text, protocol, limit).adaptation
    caches = [{"cache_len": 0}, {"cache_len": 20_000, "cache_theta": 60.0, "cache_weight": 0.75}]
    caches = [adapt(protocol, **each) for each in caches[: 2 if chosen.cache_len else 1]]
    best = min(caches, key=lambda way: measure(net, text, way, limit))
    rates = (0.0,) if protocol.batch_size > 1 or name == "single-pass" else tuning.RATES
    rates = [adapt(best, rate=rate) for rate in rates]
    best = min(rates, key=lambda way: measure(net, text, way, limit)).adaptation
    assert (chosen.cache_len, chosen.rate) == (best.cache_len, best.rate)


def test_ways_at_different_places_are_an_error(make_net, text):
    ways = [Protocol(tgt_len=10), Protocol(tgt_len=10, batch_size=2)]
    with pytest.raises(AssertionError):
        score_in_turns(make_net(), text, ways, ALL)


def test_every_way_yields_the_same_tokens_of_each_segment(make_net, text):
    net = make_net()
    way = Protocol(tgt_len=8, mem_len=0, warmup_len=20)
    ways = [way, adapt(way, cache_len=30), adapt(way, rate=0.1)]
    n_scored, nats = score_in_turns(net, text, ways, ALL)
    assert n_scored == 299
    assert nats == [measure(net, text, way) for way in ways]


def test_a_text_in_one_segment_is_read_no_further_than_it_is_scored(make_net, text, monkeypatch):
    lengths = []
    read = tuning.read_segment

    def note(reader, segment, memory):
        lengths.append(segment.new_len)
        return read(reader, segment, memory)

    monkeypatch.setattr(tuning, "read_segment", note)
    choice = choose_adaptation(make_net(), text, get_protocol("single-pass", max_tokens=40), ALL)
    assert lengths == [40]
    assert choice.tokens == {"cache": 40}


@pytest.mark.parametrize("fields", [{}, {"batch_size": 2}, {"cache_theta": 9.0}], ids=str)
def test_where_nothing_helps_nothing_is_chosen(make_net, fields):
    text = TextTokens(np.random.default_rng(3).integers(11, size=2000))
    net = make_net()
    for weight in net.parameters():
        weight.data.mul_(1e-3)
    chosen = choose(net, text, Limit(tokens=600), **fields)
    assert not chosen.adapts
    assert chosen.describe() == ""
    # A length that is given stays, with a share of 0.
    chosen = choose(net, text, Limit(tokens=600), cache_len=50, **fields)
    assert (chosen.cache_len, chosen.cache_weight) == (50, 0)


def test_what_is_given_stays(make_net, text):
    given = {"cache_len": 50, "cache_theta": 9.0, "rate": 0.0}
    chosen = choose(make_net(), text, **given)
    assert chosen.given.keys() == {*given, "cache_weight"}
    assert chosen.given.items() >= given.items()
    assert choose(make_net(), text, cache_len=0).given.keys() == {"cache_len", "rate"}
    pair = {"cache_theta": 9.0, "cache_weight": 0.9}
    assert choose(make_net(), text, **pair).given.items() >= pair.items()


def test_a_rate_that_is_given_does_not_act_on_the_choice_of_the_cache(make_net, text):
    chosen = [choose(make_net(), text, rate=rate, tgt_len=20) for rate in (0.0, 1e4)]
    assert chosen[1] == replace(chosen[0], rate=1e4)
    assert chosen[0].cache_weight > 0


def test_rows_and_networks_without_states_have_what_they_can(make_net, own_package, text):
    chosen = choose(make_net(), text, batch_size=2)
    assert (chosen.rate, chosen.cache_len) == (0, 20_000)
    net = own_package.MyConfig(n_token=11, width=8).build()
    chosen = choose(net, text)
    assert (chosen.rate > 0, chosen.cache_len) == (True, 0)


def test_three_tenths_of_the_time_are_for_the_cache_and_the_rest_for_the_rate(
    make_net, text, monkeypatch
):
    ways = [Protocol(tgt_len=10), adapt(Protocol(tgt_len=10), rate=0.1)]
    # The clock is read at the beginning and after each segment.
    limit = Limit(3.0, clock=count().__next__)
    assert score_in_turns(make_net(), text, ways, limit)[0] == 30
    given = []

    def choose_one(model, tokens, way, limit):
        given.append(limit.seconds)
        return replace(way.adaptation, cache_weight=0.3), 1

    monkeypatch.setattr(tuning, "choose_cache", choose_one)
    monkeypatch.setattr(tuning, "choose_rate", choose_one)
    pair = {"cache_theta": 9.0, "cache_weight": 0.3}
    for fields in ({}, {"rate": 0.0}, {"cache_len": 0}, pair, {"rate": 0.0} | pair):
        choose(make_net(), text, Limit(90), **fields)
    assert given == pytest.approx([27, 63, 90, 90, 90])


def test_tokens_in_place_of_seconds_choose_whatever_the_time(make_net, text):
    clock = count(step=10**6).__next__
    choice = choose_adaptation(
        make_net(), text, Protocol(tgt_len=20), Limit(tokens=70, clock=clock)
    )
    # Whole segments.
    assert choice.tokens == {"cache": 80, "rate": 80}


def test_a_time_in_which_nothing_is_scored_is_refused(make_net, text):
    how = get_protocol("sliding-window", window=50, batch_size=2)
    limit = Limit(0.5, clock=count().__next__)
    with pytest.raises(ValueError, match=r"adapt_seconds: invalid 0.5; expected more, because"):
        choose_adaptation(make_net(), text, how, limit)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"seconds": 0.0}, "adapt_seconds: invalid 0.0; expected more than 0"),
        ({"seconds": float("nan")}, "adapt_seconds: invalid nan; expected more than 0"),
        ({"tokens": 0}, "adapt_tokens: invalid 0; expected at least 1"),
    ],
)
def test_an_impossible_limit_is_refused(limit, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Limit(**limit)


def test_a_value_at_the_edge_of_those_tried_is_named(make_net, text, monkeypatch):
    monkeypatch.setattr(tuning, "THETAS", (2.0, 60.0))
    monkeypatch.setattr(tuning, "WEIGHTS", (0.0, 0.4, 0.999))
    choice = choose_adaptation(make_net(), text, adapt(Protocol(tgt_len=20), rate=0.0), ALL)
    assert (choice.edges, choice.adaptation.cache_weight) == (["cache_theta"], 0.4)
    assert choice.tried.keys() == {"cache_theta", "cache_weight"}


def test_a_rate_that_breaks_the_network_is_not_chosen(make_net, text, monkeypatch):
    monkeypatch.setattr(tuning, "RATES", (1e5, 0.1))
    assert choose(make_net(), text, tgt_len=20, cache_len=0).rate == 0.1


def test_a_chosen_cache_helps_in_an_evaluation(make_net, text):
    net = make_net()
    chosen = choose(net, text, batch_size=2, tgt_len=20)
    how = {"batch_size": 2, "tgt_len": 20}
    adapted, static = (
        stream_nats(net, text.ids, **how, adaptation=use).mean() for use in (chosen, Adaptation())
    )
    assert adapted < 0.9 * static
