"""The cached reader computes what the network computes with a memory of hidden states."""

from itertools import accumulate, product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txl_lightning import Adaptation, KeyValueCache, Memory
from txl_lightning.model import EvalLengths
from txl_lightning.model import cache as cache_module
from txl_lightning.model.contract import join_rows
from txl_lightning.model.kernels import per_head
from txl_lightning.model.reading import Reader

SEGMENTS = [5, 6, 1, 1, 3]
# Settings that the random ones leave out, and edge cases.
AXES = [
    {"positions": "learned", "clamp_len": 0},
    {"untie_r": True, "norm": "pre"},
    {"cutoffs": (3, 6), "div_val": 2, "positions": "shaw", "clamp_len": 9},
    {"norm": "pre_kv"},
    {"lengths": EvalLengths(200), "segments": [33, 5, 2]},
    {"lengths": EvalLengths(1, 3, "mem_len"), "segments": [1] * 9},
    {"tile_scores": 0, "n_head": 5, "d_head": 3},
]


def read(net, memory, tokens, segments, doc_pos=None, ext_len=0):
    """Return the logits of a text read in segments, and the memory after it."""
    logits = []
    for stop, length in zip(accumulate(segments), segments, strict=True):
        window = slice(max(stop - length - ext_len, 0), stop)
        here = None if doc_pos is None else doc_pos[:, window]
        h_BLD, memory = net.hidden(tokens[:, window], memory, here, min(ext_len, stop))
        logits.append(net.head(h_BLD)[:, -length:])
    return torch.cat(logits, dim=1), memory


def document_positions(total: int) -> torch.Tensor:
    """Return doc_pos of three rows: no new document, two, and one that is the last token."""
    place = torch.arange(total)
    return torch.stack([place, place % 7, torch.where(place == total - 1, 0, place)])


def check_equal(make_net, segments=SEGMENTS, ext_len=0, documents=False, lengths=None, **changes):
    """Read a text with the cached reader and with the network; compare to rounding."""
    torch.manual_seed(0)
    tile_scores = changes.pop("tile_scores", per_head.TILE_SCORES["cpu"])
    net = make_net(**{"mem_len": 8} | changes)
    tokens = torch.randint(11, (3, sum(segments)))
    reader = Reader(net)
    doc_pos = document_positions(sum(segments)) if documents else None
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(per_head.TILE_SCORES, "cpu", tile_scores)
        memory = net.empty_memory(3, lengths)
        slow, memory = read(net, memory, tokens, segments, doc_pos, ext_len)
        cache = reader.empty_memory(3, lengths)
        fast, cache = read(reader, cache, tokens, segments, doc_pos, ext_len)
    assert isinstance(cache, KeyValueCache)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    # With same_length mem_len, the memory of hidden states drops one reread state.
    difference = set((cache.filled_B - memory.filled_B).tolist())
    assert difference <= {0, int(memory.same_length == "mem_len" and ext_len > 0)}


@pytest.mark.parametrize("changes", AXES, ids=str)
def test_cached_reader_equals_the_network(make_net, changes):
    check_equal(make_net, **changes)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    positions=st.sampled_from(["sinusoidal", "learned", "shaw"]),
    norm=st.sampled_from(["post", "pre", "pre_kv"]),
    segments=st.lists(st.integers(1, 12), min_size=2, max_size=7),
    mem_len=st.sampled_from([0, 1, 3, 8, 40]),
    clamp_len=st.sampled_from([None, 1, 4]),
    same_length=st.sampled_from([None, "mem_len", "mem_len+1"]),
    ext_len=st.sampled_from([0, 0, 1, 3, 20]),
    documents=st.booleans(),
    tile_scores=st.sampled_from([0, 200, 1 << 19]),
)
def test_cached_reader_equals_the_network_in_any_setting(
    make_net, mem_len, clamp_len, same_length, **axes
):
    lengths = EvalLengths(mem_len, clamp_len, same_length)
    check_equal(make_net, **axes, clamp_len=9, lengths=lengths)


@pytest.mark.parametrize("kind", [lambda net: net, Reader], ids=["network", "reader"])
@torch.inference_mode()
def test_a_segment_without_tokens_changes_nothing_and_no_rows_give_no_logits(make_net, kind):
    net = kind(make_net())
    tokens = torch.randint(11, (2, 6))
    documents = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 3]])
    expected, memory = read(net, None, tokens, [3, 3], documents)
    actual, same = read(net, None, tokens, [0, 3, 0, 3, 0], documents)
    assert torch.equal(actual, expected)
    assert torch.equal(same.filled_B, memory.filled_B)
    assert net(tokens[:0])[0].shape == (0, 6, 11)


def test_buffer_is_rarely_moved(make_net, monkeypatch):
    moves = []
    move = KeyValueCache._move
    monkeypatch.setattr(cache_module, "MIN_SEGMENT", 16)
    monkeypatch.setattr(KeyValueCache, "_move", lambda *args: moves.append(1) or move(*args))
    check_equal(make_net, segments=[1] * 80, mem_len=5)
    assert 1 <= len(moves) <= 1 + 80 / 16


@pytest.mark.parametrize("segments", [[1] * 40, [7] * 6, [33, 5, 2]])
def test_long_memory_grows_with_the_tokens_read(make_net, monkeypatch, segments):
    monkeypatch.setattr(cache_module, "FIRST_CAPACITY", 4)
    monkeypatch.setattr(cache_module, "MIN_SEGMENT", 2)
    net = make_net()
    tokens = torch.randint(11, (3, sum(segments)))
    reader = Reader(net)
    with torch.inference_mode():
        actual, _ = read(reader, reader.empty_memory(3, EvalLengths(10**12)), tokens, segments)
        expected, _ = read(net, net.empty_memory(3, EvalLengths(50)), tokens, segments)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mem_len", [0, 4, 9, 99])
@pytest.mark.parametrize("is_even", [True, False])
@torch.inference_mode()
def test_a_saved_cache_goes_on_as_if_it_had_been_kept(make_net, tmp_path, mem_len, is_even):
    reader = Reader(make_net())
    tokens = torch.randint(11, (3, 30))
    doc_pos = None if is_even else document_positions(30)
    lengths = EvalLengths(mem_len)
    _, cache = read(reader, reader.empty_memory(3, lengths), tokens[:, :20], [7, 13], doc_pos)
    torch.save(cache.tensors(), tmp_path / "memory.pt")
    # Nothing but the states kept.
    n_byte = sum(each.nbytes for each in cache.tensors().values())
    assert (tmp_path / "memory.pt").stat().st_size < n_byte + 5000
    saved = torch.load(tmp_path / "memory.pt", weights_only=True)
    restored = reader.empty_memory(3, lengths).restore(saved)
    places = [None] if is_even else [doc_pos[:, 20:], None]
    for begun, place in product((cache, restored, restored.rows(slice(None))), places):
        actual, after = reader.hidden(tokens[:, 20:], begun, place)
        expected, expected_after = reader.hidden(tokens[:, 20:], cache, place)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
        assert torch.equal(after.filled_B, expected_after.filled_B)
    shorter = reader.empty_memory(3, EvalLengths(2)).restore(saved)
    assert shorter.filled_B.max() <= 2
    assert reader.hidden(tokens[:, 20:], shorter, place)[1].mem_len == 2


ADAPTED = Adaptation(cache_len=12)
KINDS = {"states": (Adaptation(), False), "keys": (Adaptation(), True), "adapted": (ADAPTED, True)}


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_memory_of_any_kind_is_saved_moved_sliced_and_resized(make_net, kind):
    net = make_net(mem_len=9)
    tokens = torch.randint(11, (3, 26))
    reader = Reader(net, *KINDS[kind])
    memory = reader.empty_memory(3)
    for part in tokens[:, :20].split([7, 13], dim=1):
        _, memory = reader.hidden(part, memory)
    new = tokens[:, 20:-1], tokens[:, 21:]
    expected, _ = reader.score(*new, memory)
    assert memory.batch_size == 3
    saved = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    restored = reader.empty_memory(3).restore(saved)
    for each in (restored, memory.to("cpu"), memory.to(torch.float64), memory.rows(slice(3))):
        torch.testing.assert_close(reader.score(*new, each)[0], expected, rtol=0, atol=1e-12)
    rows = torch.tensor([2, 0, 2])
    some, _ = reader.score(*(ids[rows] for ids in new), memory.rows(rows))
    torch.testing.assert_close(some, expected[rows], rtol=0, atol=1e-12)
    rounded, _ = reader.score(*new, memory.to(torch.bfloat16).to(torch.float64))
    assert 0 < (rounded - expected).abs().max() < 0.1
    lengths = EvalLengths(4).resolve(net.config)
    shorter = memory.resize(lengths)
    assert memory.mem_len - shorter.mem_len == 5
    if kind != "adapted":
        states = net.empty_memory(3)
        for part in tokens[:, :20].split([7, 13], dim=1):
            _, states = net.hidden(part, states)
        alone, _ = net.loss(*new, states.resize(lengths))
        torch.testing.assert_close(reader.score(*new, shorter)[0], alone, rtol=0, atol=1e-12)


@torch.inference_mode()
def test_saved_caches_are_joined_by_rows(make_net):
    _, cache = Reader(make_net()).hidden(torch.randint(11, (3, 9)))
    parts = [cache.rows(slice(1)).tensors(), cache.rows(torch.tensor([1, 2])).tensors()]
    torch.testing.assert_close(join_rows(cache, parts), cache.tensors())


@torch.inference_mode()
def test_cache_is_unchanged_by_later_caches(make_net):
    net = make_net(mem_len=9)
    reader = Reader(net)
    tokens, *texts = torch.randint(11, (4, 2, 5))
    cache = reader(tokens)[1]
    memory = net(tokens)[1]
    before = cache.tensors()
    followers = [(reader(text, cache)[1], net(text, memory)[1]) for text in texts]
    for fast, slow in followers:
        actual = reader(tokens, fast)[0]
        expected = net(tokens, slow)[0]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(cache.tensors(), before, rtol=0, atol=0)


@pytest.mark.parametrize("documents", [False, True])
@torch.inference_mode()
def test_cache_rows_are_chosen_and_repeated(make_net, documents):
    net = make_net(mem_len=9)
    tokens, following = torch.randint(11, (2, 4, 8))
    index = torch.tensor([2, 0, 2, 1])
    doc_pos = document_positions(8) if documents else None
    results = []
    for reader in (Reader(net), net):
        memory = reader.hidden(tokens[:3], None, doc_pos)[1].rows(index)
        results.append((memory.filled_B, reader(following, memory)[0]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@torch.inference_mode()
def test_cache_is_even_once_all_rows_are_full(make_net):
    reader = Reader(make_net(mem_len=6))
    tokens = torch.randint(11, (2, 20))
    doc_pos = torch.stack([torch.arange(20), (torch.arange(20) - 3).clamp(min=0)])
    caches = [read(reader, None, tokens[:, :n], [4, n - 4], doc_pos)[1] for n in (8, 20)]
    assert [cache.is_even for cache in caches] == [False, True]


@pytest.mark.parametrize("first", [True, False])
def test_cache_is_read_with_and_without_autocast_and_inference_mode(make_net, first):
    net = make_net().float()
    tokens = torch.randint(11, (2, 8))
    reader = Reader(net)
    cache = reader.empty_memory(2)
    memory = net.empty_memory(2)
    for is_half in (first, not first, first):
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=is_half)
        with torch.inference_mode(is_half), torch.no_grad(), autocast:
            actual, cache = reader(tokens, cache)
            expected, memory = net(tokens, memory)
        torch.testing.assert_close(actual.float(), expected.float(), rtol=0.05, atol=0.05)
        assert actual.std() > 0.5


def test_cache_is_refused_in_training_mode_and_with_gradients(make_net):
    reader = Reader(make_net())
    tokens = torch.randint(11, (2, 5))
    for is_training in (False, True):
        reader.net.train(is_training)
        with torch.set_grad_enabled(not is_training), pytest.raises(ValueError, match="needs eval"):
            reader(tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "absolute_sinusoidal"},
        {"positions": "absolute_learned", "clamp_len": 9},
        {"memory_source": "same_layer"},
    ],
)
@torch.inference_mode()
def test_reader_falls_back_to_hidden_states_where_keys_change(make_net, changes):
    net = make_net(**changes)
    tokens = torch.randint(11, (2, 5))
    reader = Reader(net)
    _, memory = reader(tokens)
    assert isinstance(memory, Memory)
    assert torch.equal(reader(tokens, memory)[0], net(tokens, net(tokens)[1])[0])
