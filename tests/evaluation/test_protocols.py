"""How a text is scored."""

import pytest
import torch

from txl_lightning import stream_nats


def test_nats_of_a_stream_are_those_of_one_reading(make_net):
    net = make_net()
    tokens = torch.randint(11, (3 * 20 + 2,))
    rows = tokens[:60].view(3, 20)
    expected, _ = net.nats(rows[:, :-1], rows[:, 1:])
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
        expected, _ = net.nats(window[:, :-1], window[:, 1:])
        torch.testing.assert_close(found[:, start : start + 5], expected)


def test_a_length_that_cannot_be_is_refused(make_net):
    with pytest.raises(ValueError, match="ext_len: -1 is not possible"):
        stream_nats(make_net(), torch.zeros(40), batch_size=2, tgt_len=5, ext_len=-1)


def test_the_model_stays_in_the_mode_it_was_in(make_net):
    net = make_net(dropout=0.5).train()
    tokens = torch.randint(11, (21,))
    first, second = (stream_nats(net, tokens, batch_size=1, tgt_len=5) for _ in range(2))
    assert torch.equal(first, second)
    assert net.training


def test_a_text_too_short_is_refused(make_net):
    with pytest.raises(ValueError, match=r"tokens: 7 is not possible; .* at least 2 \* 4 rows"):
        stream_nats(make_net(), torch.zeros(7), batch_size=4, tgt_len=5)
