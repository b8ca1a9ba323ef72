"""Decoding with keys and values in a ring has the numbers of the network with its memory.

Graphs are imitated on a CPU (tests/helpers/late_device.py); real ones are in
tests/training/test_gpu.py.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.late_device import imitate_graphs
from txl_lightning import Adaptation, generate
from txl_lightning.model import EvalLengths, KeyValueCache, cache, ring
from txl_lightning.model.kernels import KERNELS
from txl_lightning.model.positions import Sinusoidal
from txl_lightning.model.reading import Reader
from txl_lightning.model.ring import CapturedDecoder, Decoder


@pytest.fixture
def graphs(monkeypatch):
    with imitate_graphs(monkeypatch, ring) as made:
        yield made


def decoder_of(net, make=Decoder) -> Decoder:
    return make(net, Adaptation())


def read(reader, tokens_BL, memory, doc_pos_BL=None):
    """Return the logits of tokens that are read one by one, and each memory."""
    logits = []
    memories = []
    for n in range(tokens_BL.size(1)):
        column = slice(n, n + 1)
        places = None if doc_pos_BL is None else doc_pos_BL[:, column]
        h_B1D, memory = reader.hidden(tokens_BL[:, column], memory, places)
        logits.append(reader.head(h_B1D))
        memories.append(memory)
    return torch.cat(logits, dim=1), memories


def place_documents(tokens_BL):
    """Return doc_pos of rows whose documents begin at other places, some after the prompt."""
    place_L = torch.arange(tokens_BL.size(1))
    starts_B = 3 + 2 * torch.arange(len(tokens_BL))[:, None]
    return torch.where(place_L < starts_B, place_L, (place_L - starts_B) % (29 * starts_B))


def assert_equal_memories(actual, expected, tolerance=1e-12):
    assert isinstance(actual, KeyValueCache)
    assert (actual.n_kept, actual.is_even) == (expected.n_kept, expected.is_even)
    torch.testing.assert_close(actual.tensors(), expected.tensors(), rtol=0, atol=tolerance)


@torch.inference_mode()
def check_equal(net, tokens_BL, prompt_len, lengths, has_documents, make=Decoder, tolerance=1e-12):
    """Read a prompt and single tokens with a ring, as usual, and with a memory of states."""
    doc_pos_BL = place_documents(tokens_BL) if has_documents else None
    before = slice(prompt_len)
    after = slice(prompt_len, None)
    results = []
    for reader in (decoder_of(net, make), Reader(net), Reader(net, keeps_keys=False)):
        memory = reader.empty_memory(len(tokens_BL), lengths)
        first = None if doc_pos_BL is None else doc_pos_BL[:, before]
        _, memory = reader.hidden(tokens_BL[:, before], memory, first)
        rest = None if doc_pos_BL is None else doc_pos_BL[:, after]
        logits_BLV, memories = read(reader, tokens_BL[:, after], memory, rest)
        results.append((logits_BLV, memories[-1]))
    (ours_BLV, ours), (plain_BLV, plain), (slow_BLV, slow) = results
    torch.testing.assert_close(ours_BLV, plain_BLV, rtol=0, atol=tolerance)
    torch.testing.assert_close(ours_BLV, slow_BLV, rtol=0, atol=tolerance)
    assert_equal_memories(ours, plain, tolerance)
    assert torch.equal(ours.filled_B, slow.filled_B)


@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({}, EvalLengths(37)),
        ({"positions": "learned", "clamp_len": 9}, EvalLengths(37)),
        ({"positions": "shaw", "clamp_len": 50}, EvalLengths(37)),
        ({}, EvalLengths(37, clamp_len=12)),
        ({}, EvalLengths(37, same_length="mem_len")),
        ({}, EvalLengths(37, same_length="mem_len+1")),
        ({}, EvalLengths(1)),
        # Rings of several sizes, one after the other.
        ({}, EvalLengths(300)),
        ({"norm": "pre", "untie_r": True, "cutoffs": (3, 6), "n_head": 4}, EvalLengths(63)),
    ],
    ids=str,
)
def test_hundreds_of_tokens_read_by_a_ring_are_those_of_the_network(
    make_net, changes, lengths, has_documents
):
    check_equal(make_net(**changes), torch.randint(11, (3, 110)), 9, lengths, has_documents)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    positions=st.sampled_from(["sinusoidal", "learned", "shaw"]),
    n_row=st.sampled_from([1, 2, 5]),
    prompt_len=st.integers(1, 12),
    mem_len=st.sampled_from([1, 3, 8, 40]),
    clamp_len=st.sampled_from([None, 1, 4]),
    same_length=st.sampled_from([None, "mem_len", "mem_len+1"]),
    has_documents=st.booleans(),
    min_spare=st.sampled_from([1, 3]),
    make=st.sampled_from([Decoder, CapturedDecoder]),
)
def test_a_ring_equals_the_network_in_any_setting(
    make_net, graphs, positions, n_row, prompt_len, mem_len, clamp_len, same_length,
    has_documents, min_spare, make
):  # fmt: skip
    net = make_net(positions=positions, clamp_len=9)
    lengths = EvalLengths(mem_len, clamp_len, same_length)
    tokens_BL = torch.randint(11, (n_row, prompt_len + 25))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "MIN_SPARE", min_spare)
        check_equal(net, tokens_BL, prompt_len, lengths, has_documents, make)


def test_float32_has_only_the_rounding_of_float32(make_net):
    tokens_BL = torch.randint(11, (3, 200))
    check_equal(make_net().float(), tokens_BL, 9, EvalLengths(37), True, tolerance=1e-5)


@pytest.mark.parametrize("make", [Decoder, CapturedDecoder])
@torch.inference_mode()
def test_each_memory_is_a_value_that_later_tokens_do_not_change(
    make_net, graphs, monkeypatch, make
):
    # New keys are written, and slots moved, after few tokens.
    monkeypatch.setattr(cache, "MIN_SEGMENT", 8)
    net = make_net(mem_len=7)
    tokens_BL = torch.randint(11, (2, 30))
    reader = Reader(net)
    decoder = decoder_of(net, make)
    _, memories = read(decoder, tokens_BL, decoder.empty_memory(2))
    _, expected = read(reader, tokens_BL, reader.empty_memory(2))
    # Other texts follow each of them, the latest first.
    for n in [29, 28, 11, 12, 3, 0]:
        assert_equal_memories(memories[n], expected[n])
        ours_BLV, ours = read(decoder, tokens_BL[:, :9], memories[n])
        theirs_BLV, theirs = read(reader, tokens_BL[:, :9], expected[n])
        torch.testing.assert_close(ours_BLV, theirs_BLV, rtol=0, atol=1e-12)
        assert_equal_memories(ours[-1], theirs[-1])
    for ours, theirs in zip(memories, expected, strict=True):
        assert_equal_memories(ours, theirs)


@torch.inference_mode()
def test_rings_are_filled_once_until_another_memory_is_given(make_net, monkeypatch):
    made = []
    monkeypatch.setattr(
        ring.Ring, "load", lambda *args, load=ring.Ring.load: made.append(load(*args))
    )
    decoder = decoder_of(make_net(mem_len=9))
    tokens_BL = torch.randint(11, (2, 300))
    _, memories = read(decoder, tokens_BL, decoder.empty_memory(2))
    assert len(made) == 1
    read(decoder, tokens_BL[:, :3], memories[40])
    assert len(made) == 2


@torch.inference_mode()
def test_an_interrupted_token_is_read_again_as_if_it_had_not_been_begun(make_net):
    net = make_net(mem_len=7)
    tokens_BL = torch.randint(11, (2, 30))
    decoder = decoder_of(net)
    _, [*_, memory] = read(decoder, tokens_BL, decoder.empty_memory(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net.layers[1].feed_forward, "forward", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            read(decoder, tokens_BL[:, :1], memory)
    logits_BLV, _ = read(decoder, tokens_BL, memory)
    expected_BLV, _ = read(Reader(net), tokens_BL, memory)
    torch.testing.assert_close(logits_BLV, expected_BLV, rtol=0, atol=1e-12)


@torch.inference_mode()
def test_a_ring_that_could_not_be_made_is_made_for_the_next_token(make_net, monkeypatch):
    net = make_net(mem_len=7)
    tokens_BL = torch.randint(11, (2, 9))
    decoder = decoder_of(net)
    _, [*_, memory] = read(decoder, tokens_BL, decoder.empty_memory(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "allocate_ring", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            read(decoder, tokens_BL[:1], memory.rows(slice(1)))
    logits_BLV, _ = read(decoder, tokens_BL, memory)
    expected_BLV, _ = read(Reader(net), tokens_BL, memory)
    torch.testing.assert_close(logits_BLV, expected_BLV, rtol=0, atol=1e-12)


def test_a_ring_made_under_inference_mode_is_read_under_no_grad(make_net):
    net = make_net(mem_len=7)
    first_BL, rest_BL = torch.randint(11, (2, 2, 9))
    results = []
    for reader in (decoder_of(net), Reader(net)):
        with torch.inference_mode():
            _, [*_, memory] = read(reader, first_BL, reader.empty_memory(2))
        with torch.no_grad():
            results.append(read(reader, rest_BL, memory)[0])
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def remove_layer(net):
    net.layers = net.layers[:1]


@pytest.mark.parametrize(
    ("change", "has_gradient", "message"),
    [
        (lambda net: None, True, r"needs eval\(\) and torch.inference_mode or no_grad"),
        (lambda net: net.train(), False, r"needs eval\(\) and torch.inference_mode or no_grad"),
        (remove_layer, False, "layers: invalid 1; expected 2, as its positions have"),
    ],
    ids=["gradients", "training", "layers"],
)
def test_what_keys_and_values_refuse_a_ring_refuses(make_net, change, has_gradient, message):
    net = make_net(mem_len=7)
    decoder = decoder_of(net)
    with torch.no_grad():
        _, [*_, memory] = read(decoder, torch.tensor([[1, 2, 3]]), decoder.empty_memory(1))
    change(net)
    with torch.set_grad_enabled(has_gradient), pytest.raises(ValueError, match=message):
        decoder.hidden(torch.tensor([[4]]), memory)


@torch.inference_mode()
def test_a_ring_is_read_with_and_without_autocast(make_net):
    net = make_net(mem_len=7).float()
    decoder = decoder_of(net)
    reader = Reader(net)
    memory = decoder.empty_memory(2)
    expected = reader.empty_memory(2)
    for is_half in [False, True, False]:
        tokens_BL = torch.randint(11, (2, 5))
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            ours_BLV, [*_, memory] = read(decoder, tokens_BL, memory)
            theirs_BLV, [*_, expected] = read(reader, tokens_BL, expected)
        torch.testing.assert_close(ours_BLV.float(), theirs_BLV.float(), rtol=0.05, atol=0.05)


class OwnAttention(ring.RelativeAttention):
    """Attention that reads states in their order."""


class OwnPositions(Sinusoidal):
    pass


def replace_attention(net):
    net.layers[1].attention.__class__ = OwnAttention


def replace_positions(net):
    net.positions.__class__ = OwnPositions


def choose_reference(net):
    net.layers[0].attention.attend = KERNELS["reference"]


def hook(net):
    net.layers[0].register_forward_hook(lambda _, __, out: 2 * out)


def replace_call(net):
    net.run_layer = lambda layer, *inputs: layer(*inputs)


OWN_PARTS = [replace_attention, replace_positions, choose_reference, replace_call]


@pytest.mark.parametrize("change", [*OWN_PARTS, hook])
def test_parts_of_a_users_own_are_asked_for_each_token(make_net, change):
    net = make_net(mem_len=7)
    change(net)
    decoder = decoder_of(net)
    assert decoder.has_ring == (change is hook)
    check_equal(net, torch.randint(11, (2, 30)), 5, None, False)


@torch.inference_mode()
def test_all_tokens_are_one_graph_until_weights_are_elsewhere(make_net, graphs):
    net = make_net(mem_len=300)
    decoder = decoder_of(net, CapturedDecoder)
    reader = Reader(net)
    tokens_BL = torch.randint(11, (2, 80))
    _, [*_, memory] = read(decoder, tokens_BL, decoder.empty_memory(2))
    # The first one has no memory.
    assert [graph.replays for graph in graphs] == [79]
    net.load_state_dict({name: 0.5 * each for name, each in net.state_dict().items()})
    for n_graph in (1, 2):
        expected_BLV, _ = read(reader, tokens_BL[:, :9], memory)
        logits_BLV, [*_, memory] = read(decoder, tokens_BL[:, :9], memory)
        torch.testing.assert_close(logits_BLV, expected_BLV, rtol=0, atol=1e-12)
        assert len(graphs) == n_graph
        weight = net.layers[0].attention.q_net.weight
        weight.data = 2 * weight.data


@pytest.mark.parametrize("change", [*OWN_PARTS, hook])
def test_a_graph_of_parts_of_a_users_own_is_refused(make_net, graphs, change):
    net = make_net()
    change(net)
    with pytest.raises(
        ValueError, match=r"^cuda_graph: invalid true; expected false with a kernel"
    ):
        decoder_of(net, CapturedDecoder)


def test_a_graph_is_refused_under_autocast(make_net, graphs):
    prompt = torch.tensor([1, 2, 3])
    with pytest.raises(ValueError, match="expected false under autocast"), torch.autocast("cpu"):
        generate(make_net().float(), prompt, 3, cuda_graph=True)


def test_a_graph_is_refused_without_a_gpu(make_net):
    message = "^cuda_graph: invalid true; expected false on a device of type cpu$"
    with pytest.raises(ValueError, match=message):
        generate(make_net(), torch.tensor([1]), 3, cuda_graph=True)


@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1, 2, 3], [4]]], ids=["one", "padded"])
def test_texts_generated_by_graphs_are_those_without(make_net, graphs, prompts):
    net = make_net(mem_len=9)
    texts = [generate(net, prompts, 40, seed=1, cuda_graph=use) for use in (False, True)]
    assert texts[0] == texts[1]
    assert [graph.replays for graph in graphs] == [40]
