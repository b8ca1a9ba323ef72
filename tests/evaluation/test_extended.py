"""What a segment reads again is context: it is one stretch with the memory, and scored once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning import Memory, stream_nats
from txl_lightning.data.lengths import Fixed, Varied
from txl_lightning.data.orders import InOrder, Rolled, Shuffled
from txl_lightning.data.stream import Repeated, Stream
from txl_lightning.data.tokens import Text
from txl_lightning.evaluation import segment_answers, segment_nats

SIZES = [(1, 1), (1, 7), (5, 1), (5, 5), (4, 6), (6, 4), (3, 63), (63, 9)]
STARTS = np.array([0, 4, 5, 19, 20, 21, 45, 58])


@st.composite
def readings(draw):
    """Any endless reading of three passes; every token is its own place."""
    n_token, seed = draw(st.integers(30, 120)), draw(st.integers(0, 99))
    cuts = draw(st.sets(st.integers(1, n_token - 1), max_size=9))
    text = Text(np.arange(n_token), np.array([0, *sorted(cuts)]))
    order = draw(st.sampled_from([InOrder(text), Rolled(text, seed), Shuffled(text, seed)]))
    lengths = draw(st.sampled_from([Fixed(1), Fixed(4), Fixed(33), Varied(6, seed)]))
    ext_len = draw(st.sampled_from([0, 1, 5, 6, 40]))
    stream = Stream(text, 2, lengths, order, ext_len=ext_len)
    n_repeated = draw(st.sampled_from([0, 0, 2, 5]))
    count = sum(lengths.count(stream.total, nth) for nth in range(3))
    return (Repeated(stream, n_repeated) if n_repeated else stream), count


@settings(deadline=None, max_examples=200)
@given(readings(), st.sampled_from([0, 1, 4, 9, 50]))
def test_each_query_sees_the_tokens_before_it_as_far_as_memory_goes(reading, mem_len):
    """States are token ids here, so that what is seen can be read."""
    stream, count = reading
    memory = Memory.empty(1, 2, mem_len, 1, dtype=torch.float64)
    for index in range(count):
        segment = stream.segment(index)
        tokens_BL = segment.tokens_BL
        reach_BL = memory.reach(tokens_BL.size(1), segment.past_BL)
        held_BS = torch.cat([memory.h_NBMD[0, :, :, 0].long(), tokens_BL], dim=1)
        for row, visible_LS in enumerate(memory.visible(reach_BL)):
            for place, visible_S in enumerate(visible_LS):
                token = int(tokens_BL[row, place])
                far = min(int(segment.past_BL[row, place]), mem_len + place)
                assert held_BS[row, visible_S].tolist() == list(range(token - far, token + 1))
        memory = memory.remember(tokens_BL.double()[None, ..., None], reach_BL, segment.again)


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "matmul"])
@pytest.mark.parametrize(("tgt_len", "ext_len"), SIZES)
def test_with_enough_memory_reading_again_changes_nothing_but_the_work(
    make_net, kernel, tgt_len, ext_len
):
    net, tokens = make_net(kernel=kernel), torch.randint(11, (3 * 25 + 2,))
    rows = tokens[:75].view(3, 25)
    expected, _ = net.nats(rows[:, :-1], rows[:, 1:])
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
        expected, _ = net.nats(window[:, :-1], window[:, 1:])
        torch.testing.assert_close(nats, expected[0, -1])


@pytest.mark.parametrize("order", [InOrder, lambda text: Rolled(text, 3)])
@pytest.mark.parametrize("lengths", [Fixed(4), Fixed(9), Varied(6, 1)])
@pytest.mark.parametrize("ext_len", [3, 7, 40])
def test_documents_are_read_as_if_each_were_alone(make_net, order, lengths, ext_len):
    net, ids = make_net(), np.random.default_rng(0).integers(11, size=65)
    text = Text(np.arange(65), STARTS)
    stream = Stream(text, 2, lengths, order(text), ext_len=ext_len)
    memory, n_scored = net.empty_memory(2, 70), 0
    for index in range(2 * len(stream)):
        place = stream.segment(index)
        tokens_BL, targets_BL = (torch.from_numpy(ids[p]) for p in (place[0], place[1]))
        segment = place._replace(tokens_BL=tokens_BL, targets_BL=targets_BL)
        nats_BL, memory = segment_nats(net, segment, memory)
        for row, column in segment.scored_BL.nonzero().tolist():
            at, past = int(place.tokens_BL[row, column]), int(segment.past_BL[row, column])
            alone = torch.from_numpy(ids[None, at - past : at + 2])
            expected, _ = net.nats(alone[:, :-1], alone[:, 1:])
            torch.testing.assert_close(nats_BL[row, column], expected[0, -1])
            n_scored += 1
    assert n_scored > 80


def test_answers_are_read_as_nats_are(make_net):
    net, stream = make_net(), Stream.of(np.arange(44) % 11, 2, 4, ext_len=3)
    memory = other = net.empty_memory(2)
    for index in range(len(stream)):
        segment = stream.segment(index)
        nats_BL, memory = segment_nats(net, segment, memory)
        found_BL, _, other = segment_answers(net, segment, other)
        assert torch.equal(found_BL, nats_BL)


def test_gradients_flow_into_what_is_read_again_and_not_into_memory(make_net):
    net = make_net(n_token=40, mem_len=9, tie_weight=False)
    stream, memory = Stream.of(np.arange(30), 1, 5, ext_len=3), net.empty_memory(1)
    for index in range(4):
        segment = stream.segment(index)
        nats_BL, memory = segment_nats(net, segment, memory)
    nats_BL[segment.scored_BL].sum().backward()
    moved = net.embedding.weight.grad.abs().sum(dim=1).nonzero().flatten()
    assert moved.tolist() == list(range(12, 20))
    assert not memory.h_NBMD.requires_grad
