"""What a segment reads again is context: it is one stretch with the memory, and scored once."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning import Memory, stream_nats
from txl_lightning.data.orders import (
    FixedLengths,
    RolledOrder,
    ShuffledOrder,
    TextOrder,
    VarlenLengths,
)
from txl_lightning.data.stream import IGNORED, Stream, TrainingLoader
from txl_lightning.data.tokens import Text
from txl_lightning.evaluation import segment_answers, segment_nats
from txl_lightning.model import EvalLengths

SIZES = [(1, 1), (1, 7), (5, 1), (5, 5), (4, 6), (6, 4), (3, 63), (63, 9)]
STARTS = np.array([0, 4, 5, 19, 20, 21, 45, 58])


@st.composite
def readings(draw):
    """Any endless reading of three passes; every token is its own place."""
    n_token, seed = draw(st.integers(30, 120)), draw(st.integers(0, 99))
    cuts = draw(st.sets(st.integers(1, n_token - 1), max_size=9))
    text = Text(np.arange(n_token), np.array([0, *sorted(cuts)]))
    order = draw(
        st.sampled_from([TextOrder(text), RolledOrder(text, seed), ShuffledOrder(text, seed)])
    )
    lengths = draw(
        st.sampled_from(
            [FixedLengths(1), FixedLengths(4), FixedLengths(33), VarlenLengths(6, seed)]
        )
    )
    ext_len = draw(st.sampled_from([0, 1, 5, 6, 40]))
    stream = Stream(text, 2, lengths, order, ext_len=ext_len)
    n_repeated = draw(st.sampled_from([0, 0, 2, 5]))
    count = sum(lengths.count(stream.total, nth) for nth in range(3))
    loader = TrainingLoader(stream, n_segment=n_repeated or None)
    return list(itertools.islice(loader, count)), ext_len


@settings(deadline=None, max_examples=200)
@given(readings(), st.sampled_from([0, 1, 4, 9, 50]))
def test_each_query_sees_the_tokens_before_it_as_far_as_memory_goes(reading, mem_len):
    """States are token ids here, so that what is seen can be read."""
    segments, ext_len = reading
    memory = Memory.empty(1, 2, mem_len, 1, dtype=torch.float64)
    for segment in segments:
        tokens_BL = segment.tokens_BL
        mask_BLS = memory.attention_mask(tokens_BL.size(1), segment.doc_pos_BL)
        held_BS = torch.cat([memory.h_NBMD[0, :, :, 0].long(), tokens_BL], dim=1)
        for row, visible_LS in enumerate(mask_BLS):
            for place, visible_S in enumerate(visible_LS):
                token = int(tokens_BL[row, place])
                far = min(int(segment.doc_pos_BL[row, place]), mem_len + place)
                assert held_BS[row, visible_S].tolist() == list(range(token - far, token + 1))
        memory = memory.updated(
            tokens_BL.double()[None, ..., None], mask_BLS, min(ext_len, tokens_BL.size(1))
        )


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "matmul"])
@pytest.mark.parametrize(("tgt_len", "ext_len"), SIZES)
def test_with_enough_memory_reading_again_changes_nothing_but_the_work(
    make_net, kernel, tgt_len, ext_len
):
    net, tokens = make_net(kernel=kernel), torch.randint(11, (3 * 25 + 2,))
    rows = tokens[:75].view(3, 25)
    expected, _ = net.loss(rows[:, :-1], rows[:, 1:])
    lengths = {"tgt_len": tgt_len, "ext_len": ext_len, "mem_len": 25}
    found = stream_nats(net, tokens, batch_size=3, **lengths)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("tgt_len", "ext_len"), SIZES)
def test_without_memory_what_is_read_again_is_the_only_context(make_net, tgt_len, ext_len):
    net, tokens = make_net(), torch.randint(11, (26,))
    lengths = {"tgt_len": tgt_len, "ext_len": ext_len, "mem_len": 0}
    found = stream_nats(net, tokens, batch_size=1, **lengths)[0]
    assert len(found) == 25
    for place, nats in enumerate(found):
        start = place // tgt_len * tgt_len
        window = tokens[None, max(start - ext_len, 0) : place + 2]
        expected, _ = net.loss(window[:, :-1], window[:, 1:])
        torch.testing.assert_close(nats, expected[0, -1])


@pytest.mark.parametrize("order", [TextOrder, lambda text: RolledOrder(text, 3)])
@pytest.mark.parametrize("lengths", [FixedLengths(4), FixedLengths(9), VarlenLengths(6, 1)])
@pytest.mark.parametrize("ext_len", [3, 7, 40])
def test_documents_are_read_as_if_each_were_alone(make_net, order, lengths, ext_len):
    net, ids = make_net(), np.random.default_rng(0).integers(11, size=65)
    text = Text(np.arange(65), STARTS)
    stream = Stream(text, 2, lengths, order(text), ext_len=ext_len)
    memory, n_scored = net.empty_memory(2, EvalLengths(70)), 0
    for index in range(2 * len(stream)):
        place = stream.segment(index)
        tokens_BL, targets_BL = (torch.from_numpy(ids[p.clamp(min=0)]) for p in place[:2])
        targets_BL[place.targets_BL == IGNORED] = IGNORED
        segment = place._replace(tokens_BL=tokens_BL, targets_BL=targets_BL)
        nats_BL, memory = segment_nats(net, segment, memory, stream.ext_len)
        for row, column in segment.targets_BL.ne(IGNORED).nonzero().tolist():
            at, past = int(place.tokens_BL[row, column]), int(segment.doc_pos_BL[row, column])
            alone = torch.from_numpy(ids[None, at - past : at + 2])
            expected, _ = net.loss(alone[:, :-1], alone[:, 1:])
            torch.testing.assert_close(nats_BL[row, column], expected[0, -1])
            n_scored += 1
    assert n_scored > 80


def test_answers_are_read_as_nats_are(make_net):
    net, stream = make_net(), Stream.from_tokens(np.arange(44) % 11, 2, 4, ext_len=3)
    memory = other = net.empty_memory(2)
    for index in range(len(stream)):
        segment = stream.segment(index)
        nats_BL, memory = segment_nats(net, segment, memory, stream.ext_len)
        found_BL, _, other = segment_answers(net, segment, other, stream.ext_len)
        assert torch.equal(found_BL, nats_BL)


def test_gradients_flow_into_what_is_read_again_and_not_into_memory(make_net):
    net = make_net(n_token=40, mem_len=9, tie_weight=False)
    stream, memory = Stream.from_tokens(np.arange(30), 1, 5, ext_len=3), net.empty_memory(1)
    for index in range(4):
        segment = stream.segment(index)
        nats_BL, memory = segment_nats(net, segment, memory, stream.ext_len)
    nats_BL.sum().backward()
    moved = net.embedding.weight.grad.abs().sum(dim=1).nonzero().flatten()
    assert moved.tolist() == list(range(12, 20))
    assert not memory.h_NBMD.requires_grad
