"""The network's properties."""

import copy
from itertools import pairwise

import pytest
import torch

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model import EvalLengths
from txl_lightning.model.kernels import KERNELS
from txl_lightning.model.positions import SCHEMES


def read_in_segments(net, tokens_BL, lengths, mem_len):
    """Logits of a text read segment by segment."""
    memory, parts = net.empty_memory(len(tokens_BL), EvalLengths(mem_len)), []
    for part_BL in tokens_BL.split(lengths, dim=1):
        logits_BLV, memory = net(part_BL, memory)
        parts.append(logits_BLV)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [({}, [1] * 9), ({}, [4, 4, 1]), ({}, [63, 5]), ({"norm": "pre"}, [2, 7])]
    + [({"kernel": kernel}, [2, 7]) for kernel in sorted(KERNELS)]
    + [({"positions": name, "clamp_len": 5}, [1] * 15) for name in ("learned", "shaw")]
    + [({"cutoffs": (3, 6), "div_val": 2, "d_embed": 4}, [4, 5])],
)
def test_reading_in_segments_equals_reading_at_once(make_net, changes, lengths):
    net, tokens = make_net(**changes), torch.randint(11, (3, sum(lengths)))
    in_parts = read_in_segments(net, tokens, lengths, mem_len=sum(lengths))
    torch.testing.assert_close(in_parts, net(tokens)[0], rtol=0, atol=1e-10)


def test_layer_sees_its_segment_and_mem_len_states_before_it(make_net):
    net, tokens = make_net(n_layer=1, mem_len=3), torch.randint(1, 11, (1, 9))
    before = read_in_segments(net, tokens, [3, 3, 3], 3)
    for changed in range(9):
        other = tokens.clone()
        other[0, changed] = 0
        after = read_in_segments(net, other, [3, 3, 3], 3)
        reached = (before != after).any(-1)[0].nonzero().flatten().tolist()
        segment_end = (changed // 3 + 1) * 3
        assert reached == list(range(changed, min(segment_end + 3, 9)))


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_no_output_depends_on_a_later_token(make_net, kernel):
    net, tokens = make_net(kernel=kernel), torch.randint(1, 11, (2, 8))
    before, _ = net(tokens)
    for changed in range(8):
        other = tokens.clone()
        other[:, changed] = 0
        after, _ = net(other)
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert not torch.equal(after[:, changed], before[:, changed])


def test_mem_len_changes_nothing_while_memory_is_empty(make_net):
    net, tokens = make_net(), torch.randint(11, (2, 5))
    alone, _ = net(tokens, net.empty_memory(2, EvalLengths(0)))
    for mem_len in (1, 6, 63):
        found, _ = net(tokens, net.empty_memory(2, EvalLengths(mem_len)))
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)


def test_memory_changes_the_next_segment(make_net):
    net, (first, second) = make_net(), torch.randint(11, (2, 3, 5))
    assert not torch.allclose(net(second, net(first)[1])[0], net(second)[0])


def test_inputs_are_unchanged_and_memory_has_no_gradient(make_net):
    net = make_net()
    _, memory = net(torch.randint(11, (2, 5)))
    tokens = torch.randint(11, (2, 5))
    kept = copy.deepcopy((tokens, memory.h_NBMD, memory.filled_B))
    logits, after = net.train()(tokens, memory)
    found = (tokens, memory.h_NBMD, memory.filled_B)
    assert all(torch.equal(a, b) for a, b in zip(kept, found, strict=True))
    assert (logits.requires_grad, after.h_NBMD.requires_grad) == (True, False)


def test_loss_is_minus_the_log_probability_of_each_target(make_net):
    net, (tokens, targets) = make_net(), torch.randint(11, (2, 2, 5))
    expected = -net(tokens)[0].log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(net.loss(tokens, targets)[0], expected)


def test_loss_of_a_half_precision_network_is_float32_and_its_memory_half(make_net):
    nats, memory = make_net().to(torch.bfloat16).loss(*torch.randint(11, (2, 2, 5)))
    assert (nats.dtype, memory.h_NBMD.dtype) == (torch.float32, torch.bfloat16)


def test_memory_under_autocast_has_its_precision_whatever_it_had_before(make_net):
    net, tokens = make_net().float(), torch.randint(11, (2, 5))
    _, memory = net(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        assert net.compute_dtype == net.empty_memory(2).h_NBMD.dtype == torch.bfloat16
        assert net(tokens, memory)[1].h_NBMD.dtype == torch.bfloat16
    assert (memory.h_NBMD.dtype, net.compute_dtype) == (torch.float32, torch.float32)


def test_memory_of_other_rows_is_refused(make_net):
    net = make_net()
    with pytest.raises(ValueError, match="memory: invalid 3 rows; expected 2"):
        net(torch.randint(11, (2, 5)), net.empty_memory(3))


def test_empty_memory_has_the_lengths_of_training_or_of_evaluation(make_net):
    net = make_net(mem_len=6, clamp_len=5, same_length="mem_len")
    for lengths, expected in (
        (None, (6, 5, "mem_len")),
        (EvalLengths(9, 3, "mem_len+1"), (9, 3, "mem_len+1")),
        (EvalLengths(same_length="all"), (6, 5, None)),
    ):
        memory = net.empty_memory(2, lengths)
        assert (memory.mem_len, memory.clamp_len, memory.same_length) == expected


def test_dropout_is_of_training_only(make_net):
    tokens = torch.randint(11, (2, 5))
    for changes in ({"dropout": 0.3}, {"dropatt": 0.3}):
        net = make_net(**changes)
        assert torch.equal(net(tokens)[0], net(tokens)[0])
        net.train()
        assert not torch.equal(net(tokens)[0], net(tokens)[0])


def document_positions(lengths) -> torch.Tensor:
    """Number of tokens of the same document before each token of a row."""
    return torch.cat([torch.arange(length) for length in lengths])


def read_alone(net, tokens, targets, doc_pos, lengths, tgt_len):
    """One row at a time; where a document begins, the segment is cut and the memory is empty."""
    rows = []
    for b in range(len(tokens)):
        memory, parts = net.empty_memory(1, lengths), []
        for start in range(0, tokens.size(1), tgt_len):
            row = doc_pos[b, start : start + tgt_len]
            begins = [0, *(row[1:] == 0).nonzero().flatten().add(1).tolist(), len(row)]
            for begin, end in pairwise(begins):
                if row[begin] == 0:
                    memory = net.empty_memory(1, lengths)
                part = slice(start + begin, start + end)
                nats, memory = net.loss(tokens[b, part][None], targets[b, part][None], memory)
                parts.append(nats)
        rows.append(torch.cat(parts, dim=1))
    return torch.cat(rows)


def read_in_rows(net, tokens, targets, doc_pos, lengths, tgt_len):
    """All rows at once, in segments that know documents by `doc_pos` only."""
    memory, parts = net.empty_memory(len(tokens), lengths), []
    for start in range(0, tokens.size(1), tgt_len):
        part = slice(start, start + tgt_len)
        nats, memory = net.loss(tokens[:, part], targets[:, part], memory, doc_pos[:, part])
        parts.append(nats)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize(
    ("kernel", "tgt_len", "mem_len", "doc_len"),
    [("sdpa", 1, 1, 1), ("sdpa", 7, 0, 9), ("sdpa", 5, 63, 12), ("sdpa", 63, 6, 10)]
    + [(kernel, 4, 9, 3) for kernel in sorted(KERNELS)],
)
def test_documents_in_a_row_are_read_as_if_each_were_alone(
    make_net, kernel, tgt_len, mem_len, doc_len
):
    net, total = make_net(kernel=kernel), min(70, 8 * max(tgt_len, doc_len))
    tokens, targets = torch.randint(11, (2, 3, total))
    rows = [[total], [doc_len] * total, [2 * doc_len + 1, 1, 1, *[doc_len] * total]]
    doc_pos = torch.stack([document_positions(row)[:total] for row in rows])
    weight, results = torch.randn(3, total, dtype=torch.float64), []
    for read in (read_alone, read_in_rows):
        nats = read(net, tokens, targets, doc_pos, EvalLengths(mem_len), tgt_len)
        gradients = torch.autograd.grad((nats * weight).sum(), list(net.parameters()))
        results.append((nats.detach(), *gradients))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_another_document_before_a_boundary_changes_nothing_after_it(make_net):
    net, tokens = make_net(mem_len=63), torch.randint(11, (1, 40))
    changed = tokens.clone()
    changed[:, :17] = (changed[:, :17] + 1) % 11
    doc_pos = document_positions([17, 23])[None]
    a, b = (read_in_rows(net, t, tokens, doc_pos, None, 6) for t in (tokens, changed))
    assert torch.equal(a[:, 17:], b[:, 17:])
    assert not torch.allclose(a[:, :17], b[:, :17])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # embedding + bias; u and v; a layer: q, k, v, o, r; feed-forward; two norms
        ({}, 11 * 8 + 11 + 2 * 8 + 2 * (5 * 64 + 2 * 8 * 32 + 40 + 2 * 16)),
        ({"tie_weight": False}, 2 * 11 * 8 + 11 + 2 * 8 + 2 * (5 * 64 + 2 * 8 * 32 + 40 + 2 * 16)),
        ({"norm": "pre"}, 11 * 8 + 11 + 2 * 8 + 2 * (5 * 64 + 2 * 8 * 32 + 40 + 2 * 16) + 16),
        ({"untie_r": True}, 11 * 8 + 11 + 4 * 8 + 2 * (5 * 64 + 2 * 8 * 32 + 40 + 2 * 16)),
        # narrow embeddings; a projection up, one down
        ({"d_embed": 3}, 11 * 3 + 11 + 2 * 24 + 2 * 8 + 2 * (5 * 64 + 2 * 8 * 32 + 40 + 2 * 16)),
    ],
)
def test_network_has_the_parameters_of_the_paper(make_net, changes, expected):
    assert sum(parameter.numel() for parameter in make_net(**changes).parameters()) == expected


def test_initial_weights_are_the_published_ones():
    net = TransformerXL(TransformerXLConfig(d_model=256, n_token=500, untie_r=True))
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        else:
            mean = 1.0 if "norm" in name else 0.0
            assert abs(parameter.mean().item() - mean) < 0.01, name
            assert abs(parameter.std().item() - 0.02) < 0.004, name


@pytest.mark.parametrize("positions", ["learned", "shaw", "absolute_learned"])
def test_learned_positions_begin_as_matrices_and_their_biases_at_zero(positions):
    config = TransformerXLConfig(d_model=64, positions=positions, clamp_len=99)
    for name, parameter in TransformerXL(config).positions.named_parameters():
        expected = 0.0 if name == "b_NCH" else 0.02
        assert parameter.std().item() == pytest.approx(expected, abs=0.002), name


def test_projections_of_embeddings_have_a_deviation_of_their_own():
    changes = {"d_model": 64, "n_token": 90, "cutoffs": (30, 60), "div_val": 2, "init_std": 0.1}
    net = TransformerXL(TransformerXLConfig(**changes))
    for name, parameter in net.named_parameters():
        if "projections" in name or "downs" in name:
            assert parameter.std().item() == pytest.approx(0.01, abs=0.002), name
        elif "tables" in name:
            assert parameter.std().item() == pytest.approx(0.1, abs=0.02), name


def test_uniform_weights_fill_their_range():
    net = TransformerXL(TransformerXLConfig(init="uniform", init_range=0.2))
    for name, parameter in net.named_parameters():
        if name.endswith(("net.weight", "embedding.weight", "u_NHK")):
            assert 0.19 < parameter.abs().max() <= 0.2, name
            assert parameter.std().item() == pytest.approx(0.2 / 3**0.5, abs=0.01), name


def test_memory_source_is_the_layer_below_or_the_same_layer(make_net):
    tokens = torch.randint(11, (2, 6))
    below, same = make_net(), make_net(memory_source="same_layer")
    same.load_state_dict(below.state_dict())
    _, memory = below(tokens)
    _, above = same(tokens)
    torch.testing.assert_close(above.h_NBMD[0], memory.h_NBMD[1])
    last, _ = below.hidden(tokens)
    torch.testing.assert_close(above.h_NBMD[1], last.detach())
    assert not torch.allclose(same(tokens, above)[0], below(tokens, memory)[0])


def test_queries_are_normalised_with_pre_and_not_with_pre_kv(make_net):
    tokens = torch.randint(11, (2, 6))
    nets = {norm: make_net(norm=norm, n_layer=1) for norm in ("pre", "pre_kv")}
    nets["pre_kv"].load_state_dict(nets["pre"].state_dict())
    assert not torch.allclose(nets["pre"](tokens)[0], nets["pre_kv"](tokens)[0])
    for net in nets.values():
        # Without a query every score of (a) and (b) is 0.
        net.layers[0].attention.q_net.weight.data.zero_()
    torch.testing.assert_close(nets["pre"](tokens)[0], nets["pre_kv"](tokens)[0])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "kernel": "matmul"},
        *({"positions": name, "clamp_len": 16} for name in sorted(SCHEMES)),
        {"cutoffs": (3, 6), "div_val": 2, "proj_init_std": 0.1},
        {"d_embed": 8, "loss_chunk_size": 5, "proj_init_std": 0.1},
    ],
    ids=str,
)
def test_network_learns_one_batch_by_heart(changes):
    sizes = {"n_token": 11, "n_layer": 2, "n_head": 2, "d_model": 32, "mem_len": 8}
    net = TransformerXL(TransformerXLConfig(**sizes | changes))
    tokens = torch.randint(11, (2, 17))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(150):
        nats, _ = net.loss(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        nats.mean().backward()
        optimizer.step()
    assert nats.mean() < 0.05
