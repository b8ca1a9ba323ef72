"""Keys and values that are kept give what the hidden states that are kept give."""

import pytest
import torch

from txl_lightning import KeyValueCache, Memory
from txl_lightning.model import cache as cache_module
from txl_lightning.model.kernels import inference
from txl_lightning.model.positions import SCHEMES

CACHED = ["sinusoidal", "learned", "shaw"]
TEXTS = [[4, 4, 4, 1], [1] * 9, [63, 5, 2], [2, 7, 3, 9, 1]]


def read(net, memory, tokens, lengths, past=None, again=0):
    """Logits of a text read in segments, and what is remembered of it."""
    found, start = [], 0
    for length in lengths:
        window = slice(max(start - again, 0), start + length)
        count = window.stop - window.start
        here = None if past is None else past[:, window]
        h, memory = net.hidden(tokens[:, window], memory, here, min(again, window.stop))
        found.append(net.head(h)[:, count - length :])
        start += length
    return torch.cat(found, dim=1), memory


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(params=["at once", "in pieces"])
def _both_ways(request, monkeypatch):
    """What is too much to be computed at once is computed in pieces; here all is little."""
    if request.param == "in pieces":
        monkeypatch.setitem(inference.AT_ONCE, "cpu", 0)


@pytest.fixture(params=[0, 3, 8, 200], ids=lambda mem_len: f"mem{mem_len}")
def mem_len(request):
    return request.param


def both(net, lengths, *, mem_len, rows=3, how=(None, None), **more):
    """What the memory and the cache make of the same text."""
    tokens = torch.randint(11, (rows, sum(lengths)))
    slow, memory = read(net, net.empty_memory(rows, mem_len, *how), tokens, lengths, **more)
    fast, cache = read(net, net.empty_cache(rows, mem_len, *how), tokens, lengths, **more)
    assert isinstance(cache, KeyValueCache)
    # What is read again can see one state less with same_length.
    one = int(how[1] == "mem_len" and "again" in more)
    assert set((cache.filled_B - memory.filled_B).tolist()) <= {0, one}
    return slow, fast


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("lengths", TEXTS, ids=str)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", CACHED)
def test_it_reads_what_a_memory_reads(make_net, positions, norm, lengths, mem_len):
    net = make_net(
        positions=positions, norm=norm, clamp_len=None if positions == "sinusoidal" else 9
    )
    torch.testing.assert_close(*both(net, lengths, mem_len=mem_len), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("lengths", TEXTS, ids=str)
@pytest.mark.parametrize("clamp_len", [None, 4])
@pytest.mark.parametrize("same_length", [None, "mem_len", "mem_len+1"])
def test_it_reads_as_far_back_as_a_memory(make_net, same_length, clamp_len, lengths, mem_len):
    how = (clamp_len, same_length)
    found = both(make_net(untie_r=True), lengths, mem_len=mem_len, how=how)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("lengths", TEXTS, ids=str)
@pytest.mark.parametrize("same_length", [None, "mem_len"])
def test_rows_begin_new_documents_where_they_do(make_net, same_length, lengths, mem_len):
    place = torch.arange(sum(lengths))
    # One row goes on, one begins twice, one begins with the last token.
    past = torch.stack([place, place % 7, torch.where(place == place[-1], 0, place)])
    found = both(make_net(), lengths, mem_len=mem_len, how=(None, same_length), past=past)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("at_once", [0, 200, 10_000])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("how", [(None, None), (4, "mem_len")])
def test_some_heads_or_some_rows_are_computed_at_once(make_net, monkeypatch, how, rows, at_once):
    monkeypatch.setitem(inference.AT_ONCE, "cpu", at_once)
    net = make_net(n_head=5, d_head=3)
    found = both(net, [5, 6, 1, 3], mem_len=8, rows=rows, how=how)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("again", [1, 3, 20])
@pytest.mark.parametrize("lengths", TEXTS, ids=str)
@pytest.mark.parametrize("same_length", [None, "mem_len"])
def test_tokens_may_be_read_again(make_net, same_length, lengths, again, mem_len):
    found = both(make_net(), lengths, mem_len=mem_len, how=(None, same_length), again=again)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_it_moves_seldom_and_nothing_is_lost(make_net, monkeypatch):
    moves = []
    copied = cache_module.Buffer.copied

    def counted(self, *args):
        moves.append(args)
        return copied(self, *args)

    monkeypatch.setattr(cache_module, "SLACK", 16)
    monkeypatch.setattr(cache_module.Buffer, "copied", counted)
    found = both(make_net(), [1] * 80, mem_len=5)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)
    assert len(moves) <= 1 + 80 / 16


def test_a_cache_that_was_gone_on_from_is_still_what_it_was(make_net):
    net = make_net(mem_len=9)
    tokens, first, second = torch.randint(11, (3, 2, 5))
    _, cache = net(tokens, net.empty_cache(2))
    _, memory = net(tokens, net.empty_memory(2))
    before = cache.buffer.k_NHBKC[..., : cache.end].clone()
    for text in (first, second, first):
        torch.testing.assert_close(net(text, cache)[0], net(text, memory)[0], rtol=0, atol=1e-12)
    assert torch.equal(cache.buffer.k_NHBKC[..., : cache.end], before)


def test_two_caches_that_follow_one_do_not_write_over_each_other(make_net):
    net = make_net(mem_len=9)
    tokens, *texts = torch.randint(11, (4, 2, 5))
    _, cache = net(tokens, net.empty_cache(2))
    _, memory = net(tokens, net.empty_memory(2))
    followers = [(net(text, cache)[1], net(text, memory)[1]) for text in texts]
    for follows, slow in followers:
        found, expected = net(tokens, follows)[0], net(tokens, slow)[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_rows_are_chosen_and_repeated(make_net):
    net = make_net(mem_len=9)
    tokens, chosen = torch.randint(11, (3, 5)), torch.tensor([2, 0, 2, 2])
    _, cache = net(tokens, net.empty_cache(3))
    following = torch.randint(11, (4, 3))
    found, _ = net(following, cache.rows(chosen))
    _, memory = net(tokens[chosen], net.empty_memory(4))
    torch.testing.assert_close(found, net(following, memory)[0], rtol=0, atol=1e-12)


def test_rows_that_remember_more_and_less_are_chosen(make_net):
    net = make_net(mem_len=9)
    tokens, chosen = torch.randint(11, (3, 5)), torch.tensor([2, 0, 2, 1])
    past = (torch.arange(5) - torch.tensor([[0], [2], [4]])).clamp(min=0)
    _, cache = net(tokens, net.empty_cache(3), past)
    _, memory = net(tokens, net.empty_memory(3), past)
    assert torch.equal(cache.rows(chosen).filled_B, memory.rows(chosen).filled_B)
    following = torch.randint(11, (4, 3))
    found, expected = (net(following, each.rows(chosen))[0] for each in (cache, memory))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_once_all_rows_are_full_they_are_read_as_rows_that_always_were(make_net):
    net, tokens = make_net(mem_len=6), torch.randint(11, (2, 20))
    past = torch.stack([torch.arange(20), (torch.arange(20) - 3).clamp(min=0)])
    even = [read(net, net.empty_cache(2), tokens[:, :n], [4, n - 4], past)[1] for n in (8, 20)]
    assert [cache.is_even for cache in even] == [False, True]


def test_it_is_read_as_far_back_as_was_said_last(make_net):
    net, tokens = make_net(mem_len=9), torch.randint(11, (2, 8))
    found, expected = (
        net(tokens, net(tokens, empty(2))[1].read_with(3, "mem_len"))[0]
        for empty in (net.empty_cache, net.empty_memory)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", [True, False])
def test_it_is_read_with_and_without_autocast_and_inference_mode(make_net, first):
    net, tokens = make_net().float(), torch.randint(11, (2, 8))
    cache, memory = net.empty_cache(2), net.empty_memory(2)
    for is_half in (first, not first, first):
        with (
            torch.inference_mode(is_half),
            torch.no_grad(),
            torch.autocast("cpu", torch.bfloat16, enabled=is_half),
        ):
            found, cache = net(tokens, cache)
            expected, memory = net(tokens, memory)
        torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.05)


def test_a_network_that_trains_is_refused(make_net):
    with pytest.raises(ValueError, match="call the network's eval"):
        make_net().train()(torch.randint(11, (2, 5)), make_net().empty_cache(2))


@pytest.mark.parametrize("positions", sorted(set(SCHEMES) - set(CACHED)))
def test_places_that_change_with_each_segment_are_read_from_hidden_states(make_net, positions):
    assert isinstance(make_net(positions=positions, clamp_len=9).empty_cache(2), Memory)
    assert isinstance(make_net(memory_source="same_layer").empty_cache(2), Memory)


def test_in_half_precision_it_holds_what_the_network_computes_in(make_net):
    net = make_net().to(torch.bfloat16)
    _, cache = net(torch.randint(11, (2, 5)), net.empty_cache(2))
    assert cache.buffer.k_NHBKC.dtype == torch.bfloat16


@pytest.mark.parametrize("positions", CACHED)
def test_under_autocast_it_reads_what_a_memory_reads_to_rounding(make_net, positions):
    net = make_net(positions=positions, clamp_len=9).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        slow, fast = both(net, [5, 1, 9, 1], mem_len=8)
    torch.testing.assert_close(fast, slow, rtol=0.05, atol=0.05)
    assert slow.std() > 0.5


def test_gradients_are_refused(make_net):
    net = make_net()
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        pytest.raises(ValueError, match="no grad"),
    ):
        net(torch.randint(11, (2, 5)), net.empty_cache(2))


def test_a_negative_length_is_refused(make_net):
    with pytest.raises(ValueError, match="mem_len: invalid -1"):
        make_net().empty_cache(2, -1)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("how", [(None, None), (2, "mem_len"), (1, "mem_len+1")])
def test_its_tensors_are_all_that_it_is(make_net, how, even, mem_len):
    net, tokens = make_net(), torch.randint(11, (3, 9))
    past = None if even else (torch.arange(9) - torch.tensor([[0], [3], [7]])).clamp(min=0)
    _, cache = read(net, net.empty_cache(3, mem_len, *how), tokens, [4, 5], past)
    again = KeyValueCache.of_tensors({name: t.clone() for name, t in cache.tensors().items()})
    assert (again.mem_len, again.clamp_len, again.same_length) == (mem_len, *how)
    assert torch.equal(again.filled_B, cache.filled_B)
    assert again.is_even == (cache.is_even or mem_len == 0)
    expected, found = (read(net, each, tokens, [1, 6, 2])[0] for each in (cache, again))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
