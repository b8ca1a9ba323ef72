"""How a text is scored."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from txl_lightning import stream_nats
from txl_lightning.data.tokens import Text
from txl_lightning.evaluation import Protocol, text_parts
from txl_lightning.evaluation.protocols import get_protocol, windows
from txl_lightning.model import CachedReader, EvalLengths


def test_nats_of_a_stream_are_those_of_one_reading(make_net):
    net = make_net()
    tokens = torch.randint(11, (3 * 20 + 2,))
    rows = tokens[:60].view(3, 20)
    expected, _ = net.loss(rows[:, :-1], rows[:, 1:])
    for tgt_len in (1, 6, 19, 63):
        found = stream_nats(net, tokens, batch_size=3, tgt_len=tgt_len, mem_len=20)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_with_a_memory_the_batch_size_changes_only_where_rows_start(make_net):
    net = make_net(n_layer=1)
    tokens = torch.randint(11, (40,))
    one = stream_nats(net, tokens, batch_size=1, tgt_len=1, mem_len=4)[0]
    two = stream_nats(net, tokens, batch_size=2, tgt_len=1, mem_len=4)
    torch.testing.assert_close(two[0], one[:19])
    torch.testing.assert_close(two[1, 4:], one[24:])


def test_without_memory_every_segment_starts_afresh(make_net):
    net = make_net()
    tokens = torch.randint(11, (21,))
    found = stream_nats(net, tokens, batch_size=1, tgt_len=5, mem_len=0)
    for start in range(0, 20, 5):
        window = tokens[None, start : start + 6]
        expected, _ = net.loss(window[:, :-1], window[:, 1:])
        torch.testing.assert_close(found[:, start : start + 5], expected)


def test_a_length_that_cannot_be_is_refused(make_net):
    with pytest.raises(ValueError, match="ext_len: invalid -1"):
        stream_nats(make_net(), torch.zeros(40), batch_size=2, tgt_len=5, ext_len=-1)


def test_the_model_stays_in_the_mode_it_was_in(make_net):
    net = make_net(dropout=0.5).train()
    tokens = torch.randint(11, (21,))
    first, second = (stream_nats(net, tokens, batch_size=1, tgt_len=5) for _ in range(2))
    assert torch.equal(first, second)
    assert net.training


def test_a_text_too_short_is_refused(make_net):
    with pytest.raises(ValueError, match="the text has 7 tokens; batch_size 4 needs 2"):
        stream_nats(make_net(), torch.zeros(7), batch_size=4, tgt_len=5)


FAR = {"mem_len": 6, "same_length": "mem_len", "warmup_len": 30}
"""Enough to read first that two layers of six states see all that they ever see."""


def by_place(net, text: Text, protocol: Protocol) -> torch.Tensor:
    """The nats of each token of a text; nan where none are scored."""
    parts = list(text_parts(net, text, protocol))
    nats_N = torch.full((len(text),), torch.nan, dtype=torch.float64)
    for part in parts:
        assert nats_N[part.at_K].isnan().all()
        nats_N[part.at_K] = part.nats_K
    return nats_N


@pytest.mark.parametrize(
    "lengths",
    [FAR | {"tgt_len": 5}, FAR | {"tgt_len": 1}, FAR | {"tgt_len": 4, "ext_len": 3}, windows(9)],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [2, 3, 7, 20])
def test_warmed_rows_give_every_token_but_the_first_what_one_row_gives(
    make_net, lengths, batch_size
):
    net, text = make_net(), Text(np.random.default_rng(0).integers(11, size=83))
    expected = by_place(net, text, Protocol(batch_size=1, **lengths))
    found = by_place(net, text, Protocol(batch_size=batch_size, **lengths))
    assert expected.isnan().nonzero().tolist() == [[0]]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10, equal_nan=True)


def test_rows_that_are_not_warmed_differ_where_they_start_and_nowhere_else(make_net):
    net, text = make_net(), Text(np.random.default_rng(0).integers(11, size=80))
    how = Protocol(tgt_len=5, mem_len=6, same_length="mem_len")
    one = by_place(net, text, how)
    two = by_place(net, text, replace(how, batch_size=2))
    differs = ~torch.isclose(one, two, rtol=0, atol=1e-10, equal_nan=True)
    assert differs[40:45].any()
    assert not differs[:40].any()
    assert not differs[60:].any()


def test_the_first_row_starts_cold_whatever_stands_at_the_end_of_the_text(make_net):
    """NVIDIA's roll warms it with the end."""
    net, ids = make_net(), np.random.default_rng(0).integers(11, size=60)
    how = Protocol(batch_size=3, tgt_len=4, warmup_len=8)
    other = np.concatenate([ids[:45], (ids[45:] + 1) % 11])
    one, two = (by_place(net, Text(read), how) for read in (ids, other))
    assert torch.equal(one[1:40], two[1:40])
    assert not torch.equal(one[45:], two[45:])


def test_a_warm_up_reads_the_tokens_before_a_row(make_net):
    net, ids = make_net(), torch.randint(11, (60,))
    found = stream_nats(net, ids, batch_size=3, tgt_len=4, mem_len=5, warmup_len=8)
    assert found.shape == (3, 20)
    assert found.isnan().nonzero().tolist() == [[0, 0]]
    alone = stream_nats(net, ids[32:], batch_size=1, tgt_len=4, mem_len=5)[0]
    torch.testing.assert_close(found[2], alone[7:])


@pytest.mark.parametrize("window", [1, 7, 100])
def test_each_token_of_a_sliding_window_is_predicted_from_the_window_alone(make_net, window):
    net, ids = make_net(), torch.randint(11, (50,))
    found = by_place(net, Text(ids.numpy()), Protocol(batch_size=4, **windows(window)))
    for place in range(1, 50):
        seen = ids[None, max(place - window, 0) : place + 1]
        expected, _ = net.loss(seen[:, :-1], seen[:, 1:])
        torch.testing.assert_close(found[place], expected[0, -1])


def test_windows_that_score_nothing_are_not_computed(make_net, monkeypatch):
    net, computed = make_net(), []
    hidden = CachedReader.hidden
    monkeypatch.setattr(CachedReader, "hidden", lambda *given: computed.append(1) or hidden(*given))
    by_place(net, Text(np.arange(40) % 11), Protocol(batch_size=4, **windows(30)))
    assert len(computed) == 10


def test_in_a_single_pass_all_is_one_segment(make_net):
    net, ids = make_net(mem_len=0), torch.randint(11, (50,))
    how = get_protocol("single-pass", limit=40)
    expected, _ = net.loss(ids[None, :40], ids[None, 1:41])
    [part] = text_parts(net, Text(ids.numpy()), how)
    assert part.at_K.tolist() == list(range(1, 41))
    torch.testing.assert_close(part.nats_K, expected[0])


def test_distances_and_what_is_seen_can_be_given(make_net):
    net, ids = make_net(), torch.randint(11, (40,))
    memory = net.empty_memory(1, EvalLengths(7, 3, "mem_len+1"))
    expected = []
    for start in range(0, 39, 5):
        rows = ids[None, start : start + 6]
        nats, memory = net.loss(rows[:, :-1], rows[:, 1:], memory)
        expected.append(nats)
    lengths = {"mem_len": 7, "clamp_len": 3, "same_length": "mem_len+1"}
    found = stream_nats(net, ids, batch_size=1, tgt_len=5, **lengths)
    torch.testing.assert_close(found, torch.cat(expected, dim=1))


class Watched(Text):
    """A text that knows how far it was read."""

    farthest = 0

    def ids_at(self, position_BL):
        Watched.farthest = max(Watched.farthest, int(position_BL.max()))
        return super().ids_at(position_BL)


def test_a_text_is_read_as_far_as_it_is_scored(make_net):
    parts = text_parts(make_net(), Watched(np.arange(500) % 11), Protocol(tgt_len=5))
    next(parts)
    assert Watched.farthest == 5


def test_a_model_that_is_not_done_scoring_goes_back_to_its_mode(make_net):
    net = make_net().train()
    parts = text_parts(net, Text(np.arange(500) % 11), Protocol(tgt_len=5))
    next(parts)
    assert not torch.is_inference_mode_enabled()
    parts.close()
    assert net.training


def test_nats_of_a_stream_can_be_calculated_with(make_net):
    found = stream_nats(make_net(), torch.randint(11, (20,)), batch_size=1, tgt_len=5)
    scale = torch.ones((), dtype=found.dtype, requires_grad=True)
    (found * scale).sum().backward()
    assert scale.grad == found.sum()


@pytest.mark.parametrize("loss_chunk_size", [None, 3])
def test_only_what_is_scored_is_compared_with_the_vocabulary(make_net, loss_chunk_size):
    net = make_net(cutoffs=[4, 8], loss_chunk_size=loss_chunk_size)
    ids = torch.randint(11, (40,))
    expected, _ = net.loss(ids[None, :-1], ids[None, 1:], net.empty_memory(1, EvalLengths(40)))
    found = stream_nats(net, ids, batch_size=1, tgt_len=7, mem_len=40)
    torch.testing.assert_close(found, expected)
