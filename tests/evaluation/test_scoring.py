"""Scoring of a text; context and memory are consecutive states."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.helpers.late_device import imitate_graphs
from txl_lightning import Adaptation, TransformerXL, stream_nats
from txl_lightning.data.stream import IGNORED, Stream
from txl_lightning.data.tokens import FixedLengths, RolledOrder, TextOrder, TextTokens
from txl_lightning.data.tokens import VarlenLengths as Varlen
from txl_lightning.evaluation import scoring
from txl_lightning.evaluation.protocols import Protocol, make_window_lengths
from txl_lightning.evaluation.scoring import score_text
from txl_lightning.model import EvalLengths, captured
from txl_lightning.model.graph import CudaGraph
from txl_lightning.model.reading import Reader, score_answers, score_segment


@pytest.fixture
def graphs(monkeypatch):
    with imitate_graphs(monkeypatch, captured) as made:
        yield made


# A warm-up as long as the context of two layers with six states each.
FAR = {"mem_len": 6, "same_length": "mem_len", "warmup_len": 30}


def score_alone(net: TransformerXL, tokens: torch.Tensor) -> torch.Tensor:
    """Return the nats of all tokens but the first, in one segment without memory."""
    return net.loss(tokens[None, :-1], tokens[None, 1:])[0][0]


def nats_by_position(net: TransformerXL, text: TextTokens, protocol: Protocol) -> torch.Tensor:
    """Return the nats of each token of a text; nan if it is not scored."""
    nats_N = torch.full((len(text),), torch.nan, dtype=torch.float64)
    for part in score_text(net, text, protocol):
        assert nats_N[part.position_K].isnan().all()
        nats_N[part.position_K] = part.nats_K
    return nats_N


def random_ids(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(11, size=count)


@pytest.mark.parametrize(
    ("tgt_len", "ext_len", "changes"),
    [(1, 0, {"kernel": "reference"}), (6, 0, {}), (63, 0, {"kernel": "sdpa"}),
     (1, 7, {"kernel": "sdpa"}), (4, 6, {}), (6, 4, {"kernel": "reference"}), (3, 63, {}),
     (7, 0, {"cutoffs": [4, 8], "loss_chunk_size": 3})],
)  # fmt: skip
def test_with_enough_memory_nats_depend_on_no_length(make_net, changes, tgt_len, ext_len):
    net = make_net(**changes)
    tokens = torch.randint(11, (3 * 25 + 2,))
    expected = torch.stack([score_alone(net, row) for row in tokens[:75].view(3, 25)])
    lengths = {"tgt_len": tgt_len, "ext_len": ext_len, "mem_len": 25}
    actual = stream_nats(net, tokens, batch_size=3, **lengths)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("tgt_len", "ext_len"), [(5, 0), (1, 7), (5, 5), (4, 6), (3, 63)])
def test_without_memory_the_context_of_a_segment_is_all_that_it_sees(make_net, tgt_len, ext_len):
    net = make_net()
    tokens = torch.randint(11, (26,))
    actual = stream_nats(net, tokens, batch_size=1, tgt_len=tgt_len, ext_len=ext_len, mem_len=0)[0]
    for place, nats in enumerate(actual):
        start = place // tgt_len * tgt_len
        expected = score_alone(net, tokens[max(start - ext_len, 0) : place + 2])[-1]
        torch.testing.assert_close(nats, expected)


@pytest.mark.parametrize(
    ("order", "lengths", "ext_len"),
    [
        (TextOrder, FixedLengths(4), 0),
        (TextOrder, Varlen(6, 1), 40),
        (lambda text: RolledOrder(text, 3), FixedLengths(4), 3),
        (lambda text: RolledOrder(text, 3), Varlen(6, 1), 0),
    ],
)
def test_documents_are_scored_as_if_each_were_alone(make_net, order, lengths, ext_len):
    net = make_net()
    ids = torch.from_numpy(random_ids(65))
    text = TextTokens(np.arange(65), np.array([0, 4, 5, 19, 20, 21, 45, 58]))
    stream = Stream(text, 2, lengths, order(text), ext_len=ext_len)
    memory = net.empty_memory(2, EvalLengths(70))
    n_scored = 0
    for index in range(2 * len(stream)):
        place = stream.segment(index)
        scored_BL = place.targets_BL != IGNORED
        targets_BL = ids[place.targets_BL.clamp(min=0)].where(scored_BL, IGNORED)
        segment = place._replace(tokens_BL=ids[place.tokens_BL], targets_BL=targets_BL)
        nats_BL, memory = score_segment(net, segment, memory)
        for row, column in scored_BL.nonzero().tolist():
            token = int(place.targets_BL[row, column])
            nth = column + place.n_context
            before = int(place.doc_pos_BL[row, nth])
            expected = score_alone(net, ids[token - 1 - before : token + 1])[-1]
            torch.testing.assert_close(nats_BL[row, column], expected)
            n_scored += 1
    assert n_scored > 80


def test_nats_of_answers_are_those_without_logits_of_context(make_net, monkeypatch):
    net = make_net()
    stream = Stream.from_tokens(np.arange(44) % 11, 2, 4, ext_len=3)
    nats = net.head.nats
    widths = []
    memory = net.empty_memory(2)
    other = net.empty_memory(2)
    monkeypatch.setattr(net.head, "nats", lambda h, t: widths.append(h.size(1)) or nats(h, t))
    for segment in stream:
        nats_BL, memory = score_segment(net, segment, memory)
        assert widths.pop() == segment.new_len
        found_BL, _, other = score_answers(Reader(net), segment, other)
        torch.testing.assert_close(found_BL, nats_BL, rtol=0, atol=1e-12)


def test_gradients_flow_into_context_and_not_into_memory(make_net):
    net = make_net(n_token=40, mem_len=9, tie_weight=False)
    stream = Stream.from_tokens(np.arange(30), 1, 5, ext_len=3)
    memory = net.empty_memory(1)
    for index in range(4):
        nats_BL, memory = score_segment(net, stream.segment(index), memory)
    nats_BL.sum().backward()
    moved = net.embedding.weight.grad.abs().sum(dim=1).nonzero().flatten()
    assert moved.tolist() == list(range(12, 20))
    assert not memory.h_NBMD.requires_grad


@pytest.mark.parametrize(
    "lengths",
    [FAR | {"tgt_len": 5}, FAR | {"tgt_len": 4, "ext_len": 3}, make_window_lengths(9)],
    ids=str,
)
def test_warmed_rows_give_every_token_but_the_first_the_nats_of_one_row(make_net, lengths):
    net = make_net()
    text = TextTokens(random_ids(83))
    expected = nats_by_position(net, text, Protocol(batch_size=1, **lengths))
    assert expected.isnan().nonzero().tolist() == [[0]]
    for batch_size in (2, 7, 20):
        actual = nats_by_position(net, text, Protocol(batch_size=batch_size, **lengths))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10, equal_nan=True)


def test_warm_up_reads_the_tokens_before_a_row(make_net):
    net = make_net()
    ids = torch.randint(11, (60,))
    lengths = {"tgt_len": 4, "mem_len": 5}
    actual = stream_nats(net, ids, batch_size=3, warmup_len=8, **lengths)
    assert actual.shape == (3, 20)
    assert actual.isnan().nonzero().tolist() == [[0, 0]]
    alone = stream_nats(net, ids[32:], batch_size=1, **lengths)[0]
    torch.testing.assert_close(actual[2], alone[7:])


def test_windows_that_score_nothing_are_not_computed(make_net, monkeypatch):
    hidden = TransformerXL.hidden
    computed = []

    def count(*args):
        computed.append(1)
        return hidden(*args)

    monkeypatch.setattr(TransformerXL, "hidden", count)
    protocol = Protocol(batch_size=4, **make_window_lengths(30))
    nats_by_position(make_net(), TextTokens(np.arange(40) % 11), protocol)
    assert len(computed) == 10


@pytest.mark.parametrize("n_fetched", [2, 3, 16])
def test_nats_that_are_fetched_together_keep_their_positions(make_net, monkeypatch, n_fetched):
    # Of warm-ups none are scored, and the last segment is short: groups of 0, 7 and 4 tokens.
    net = make_net()
    text = TextTokens(random_ids(61))
    protocol = Protocol(batch_size=2, tgt_len=7, warmup_len=10)
    expected = nats_by_position(net, text, protocol)
    monkeypatch.setattr(scoring, "count_fetched", lambda _: n_fetched)
    actual = nats_by_position(net, text, protocol)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_text_is_read_as_far_as_it_is_scored_and_the_models_mode_is_restored(make_net):
    class WatchedText(TextTokens):
        def ids_at(self, position_BL):
            farthest.append(position_BL.max())
            return super().ids_at(position_BL)

    net = make_net(dropout=0.5).train()
    farthest = []
    parts = score_text(net, WatchedText(np.arange(500) % 11), Protocol(tgt_len=5))
    next(parts)
    assert farthest == [5]
    assert not torch.is_inference_mode_enabled()
    parts.close()
    assert net.training
    ids = torch.randint(11, (21,))
    first, second = (stream_nats(net, ids, batch_size=1, tgt_len=5) for _ in range(2))
    assert torch.equal(first, second)
    assert net.training
    scale = torch.ones((), requires_grad=True)
    (first * scale).sum().backward()  # not a tensor of inference mode


def test_invalid_lengths_and_texts_are_refused(make_net):
    with pytest.raises(ValueError, match="ext_len: invalid -1"):
        stream_nats(make_net(), torch.zeros(40).long(), batch_size=2, tgt_len=5, ext_len=-1)
    for ids, message in (
        ([3, 99, 4, 5], "tokens: invalid ids from 0 to 99; expected 0 to 10"),
        ([3, -1, 4, 5], "tokens: invalid ids from -1 to 5; expected 0 to 10"),
        ([[1, 2], [3, 4]], "tokens: invalid 2 dimensions; expected ids in one"),
        ([0.5, 1.5, 2.0, 3.0], "tokens: invalid float32; expected whole numbers"),
        ([True, False, True, True], "tokens: invalid bool; expected whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            stream_nats(make_net(), torch.tensor(ids), batch_size=1, tgt_len=2)
    with pytest.raises(ValueError, match="the text has 7 tokens; batch_size 4 needs 2"):
        stream_nats(make_net(), torch.zeros(7).long(), batch_size=4, tgt_len=5)


def test_a_length_that_is_none_of_stream_nats_is_refused(make_net):
    with pytest.raises(TypeError, match="max_tokens"):
        stream_nats(make_net(), torch.zeros(40).long(), batch_size=2, tgt_len=5, max_tokens=20)


@pytest.mark.parametrize(
    ("changes", "lengths", "n_graph"),
    [
        ({}, {}, 1),
        ({}, {"mem_len": 40, "batch_size": 1}, 1),
        ({}, {"mem_len": 0}, 1),
        ({}, {"mem_len": 3, "same_length": "mem_len", "clamp_len": 4}, 1),
        ({"kernel": "reference", "norm": "pre"}, {"mem_len": 6, "warmup_len": 14}, 1),
        ({"cutoffs": [4, 8], "div_val": 2}, {"loss_chunk_size": 3}, 1),
        ({"positions": "learned", "clamp_len": 9}, {}, 1),
        ({"memory_source": "same_layer"}, {"tgt_len": 1}, 1),
        # The first segment of a row is shorter.
        ({}, {"ext_len": 3}, 2),
        # All of the text at once.
        ({}, {"tgt_len": None, "mem_len": 0}, 1),
    ],
    ids=str,
)
def test_nats_by_graphs_are_bit_by_bit_those_without(
    make_net, monkeypatch, graphs, changes, lengths, n_graph
):
    """Of documents, whose rows end with a shorter segment; with a memory of states, as in a fit."""
    net = make_net(**changes | {"loss_chunk_size": lengths.pop("loss_chunk_size", None)})
    text = TextTokens(random_ids(75), np.array([0, 4, 5, 19, 45, 58]))
    protocol = Protocol(**{"batch_size": 2, "tgt_len": 6, "mem_len": 9} | lengths, cuda_graph=True)
    actual = nats_by_position(net, text, protocol)
    replays = [graph.replays for graph in graphs]
    monkeypatch.setattr(scoring, "CapturedReader", partial(Reader, keeps_keys=False))
    expected = nats_by_position(net, text, protocol)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    monkeypatch.undo()
    with_keys = nats_by_position(net, text, replace(protocol, cuda_graph=False))
    torch.testing.assert_close(actual, with_keys, rtol=0, atol=1e-10, equal_nan=True)
    n_segment = len(protocol.stream(text))
    is_short = n_segment > 1 and protocol.tgt_len > 1
    assert len(replays) == n_graph
    assert sum(replays) == n_segment - is_short


def hook(net):
    net.layers[0].register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("adaptation", "change", "expected"),
    [
        (Adaptation(cache_len=9), None, "adapt, cache_len or rate"),
        (Adaptation(rate=0.1), None, "adapt, cache_len or rate"),
        (Adaptation(), hook, "hooks or methods of your own in the network"),
    ],
)
def test_what_graphs_of_evaluation_cannot_have_is_refused(
    make_net, graphs, adaptation, change, expected
):
    net = make_net()
    if change:
        change(net)
    message = f"^cuda_graph: invalid true; expected false with {expected}$"
    with pytest.raises(ValueError, match=message):
        measure_by_graphs(net, adaptation)


def measure_by_graphs(net, adaptation=Adaptation()):  # noqa: B008 (frozen)
    lengths = {"batch_size": 1, "tgt_len": 5}
    return stream_nats(net, random_ids(20), **lengths, adaptation=adaptation, cuda_graph=True)


def test_graphs_of_evaluation_are_refused_under_autocast(make_net, graphs):
    with pytest.raises(ValueError, match=r"expected false with autocast$"), torch.autocast("cpu"):
        measure_by_graphs(make_net().float())


def test_graphs_of_evaluation_are_refused_without_a_gpu(make_net):
    message = "^cuda_graph: invalid true; expected false on a device of type cpu$"
    with pytest.raises(ValueError, match=message):
        measure_by_graphs(make_net())


def test_graphs_are_refused_on_a_gpu_that_is_not_the_current_one(monkeypatch):
    """A capture would record none of its operations, and a replay would compute nothing."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for name in ("cuda", "cuda:1"):
        CudaGraph.require_device(torch.device(name), "cuda_graph")
    message = "^cuda_graph: invalid true; expected false on cuda:0, not torch's current device$"
    with pytest.raises(ValueError, match=message):
        CudaGraph.require_device(torch.device("cuda:0"), "cuda_graph")
