"""Several texts in one row: none is seen from another."""

from itertools import pairwise

import pytest
import torch

SIZES = [(1, 1, 1), (7, 3, 4), (7, 0, 9), (5, 63, 12), (63, 6, 10), (4, 9, 3)]


def past_of(lengths) -> torch.Tensor:
    """How many tokens of its own text stand before each token of a row."""
    return torch.cat([torch.arange(length) for length in lengths])


def rows_of_texts(text_len: int, total: int) -> torch.Tensor:
    """Three rows, [B, T], whose texts begin at other places."""
    lengths = [[total], [text_len] * total, [2 * text_len + 1, 1, 1, *[text_len] * total]]
    return torch.stack([past_of(row)[:total] for row in lengths])


def by_hand(net, tokens, targets, past, mem_len, tgt_len):
    """One row at a time; where a text begins, the segment is cut and the memory is empty."""
    rows = []
    for b in range(len(tokens)):
        memory, parts = net.empty_memory(1, mem_len), []
        for start in range(0, tokens.size(1), tgt_len):
            segment = slice(start, start + tgt_len)
            row = past[b, segment]
            begins = [0, *(row[1:] == 0).nonzero().flatten().add(1).tolist(), len(row)]
            for begin, end in pairwise(begins):
                if row[begin] == 0:
                    memory = net.empty_memory(1, mem_len)
                piece = slice(start + begin, start + end)
                nats, memory = net.loss(tokens[b, piece][None], targets[b, piece][None], memory)
                parts.append(nats)
        rows.append(torch.cat(parts, dim=1))
    return torch.cat(rows)


def in_rows(net, tokens, targets, past, mem_len, tgt_len):
    """All rows at once, in segments that know nothing of texts but `past`."""
    memory, parts = net.empty_memory(len(tokens), mem_len), []
    for start in range(0, tokens.size(1), tgt_len):
        segment = slice(start, start + tgt_len)
        nats, memory = net.loss(tokens[:, segment], targets[:, segment], memory, past[:, segment])
        parts.append(nats)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "matmul"])
@pytest.mark.parametrize(("tgt_len", "mem_len", "text_len"), SIZES)
def test_texts_in_a_row_are_read_as_if_each_were_alone(
    make_net, kernel, tgt_len, mem_len, text_len
):
    net, total = make_net(kernel=kernel), min(70, 8 * max(tgt_len, text_len))
    tokens, targets = torch.randint(11, (2, 3, total))
    past = rows_of_texts(text_len, total)
    weight = torch.randn(3, total, dtype=torch.float64)
    results = []
    for read in (by_hand, in_rows):
        nats = read(net, tokens, targets, past, mem_len, tgt_len)
        gradients = torch.autograd.grad((nats * weight).sum(), list(net.parameters()))
        results.append((nats.detach(), gradients))
    (slow, slow_gradients), (fast, fast_gradients) = results
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-11)
    for expected, found in zip(slow_gradients, fast_gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_another_text_before_a_boundary_changes_nothing_after_it(make_net):
    net = make_net(mem_len=63)
    tokens = torch.randint(11, (1, 40))
    changed = tokens.clone()
    changed[:, :17] = (changed[:, :17] + 1) % 11
    past = past_of([17, 23])[None]
    a, b = (in_rows(net, t, tokens, past, 63, 6) for t in (tokens, changed))
    assert torch.equal(a[:, 17:], b[:, 17:])
    assert not torch.allclose(a[:, :17], b[:, :17])
