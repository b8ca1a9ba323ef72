"""The network's properties."""

import copy

import pytest
import torch

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model.kernels import KERNELS
from txl_lightning.model.positions import SCHEMES


def in_segments(net, tokens_BL, lengths, mem_len):
    """Logits of a text read segment by segment."""
    memory, parts = net.empty_memory(len(tokens_BL), mem_len), []
    for part_BL in tokens_BL.split(lengths, dim=1):
        logits_BLV, memory = net(part_BL, memory)
        parts.append(logits_BLV)
    return torch.cat(parts, dim=1), memory


@pytest.mark.parametrize("kernel", sorted(KERNELS))
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("lengths", [[1] * 9, [4, 4, 1], [2, 7], [63, 5]])
def test_reading_in_segments_equals_reading_at_once(make_net, kernel, norm, lengths):
    net = make_net(kernel=kernel, norm=norm)
    tokens = torch.randint(11, (3, sum(lengths)))
    at_once, _ = net(tokens)
    in_parts, _ = in_segments(net, tokens, lengths, mem_len=sum(lengths))
    torch.testing.assert_close(in_parts, at_once, rtol=0, atol=1e-10)


def test_what_a_layer_sees_is_its_segment_and_mem_len_states_before_it(make_net):
    net = make_net(n_layer=1, mem_len=3)
    tokens = torch.randint(1, 11, (1, 9))
    for changed in range(9):
        other = tokens.clone()
        other[0, changed] = 0
        before, _ = in_segments(net, tokens, [3, 3, 3], 3)
        after, _ = in_segments(net, other, [3, 3, 3], 3)
        reached = (before != after).any(-1)[0].nonzero().flatten().tolist()
        segment_end = (changed // 3 + 1) * 3
        assert reached == list(range(changed, min(segment_end + 3, 9)))


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_no_output_depends_on_a_later_token(make_net, kernel):
    net = make_net(kernel=kernel)
    tokens = torch.randint(1, 11, (2, 8))
    before, _ = net(tokens)
    for changed in range(8):
        other = tokens.clone()
        other[:, changed] = 0
        after, _ = net(other)
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert not torch.equal(after[:, changed], before[:, changed])


def test_while_nothing_is_remembered_mem_len_changes_nothing(make_net):
    net = make_net()
    tokens = torch.randint(11, (2, 5))
    alone, _ = net(tokens, net.empty_memory(2, 0))
    for mem_len in (1, 6, 63):
        found, _ = net(tokens, net.empty_memory(2, mem_len))
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)


def test_memory_is_of_use_to_the_next_segment(make_net):
    net = make_net()
    first, second = torch.randint(11, (2, 3, 5))
    _, memory = net(first)
    assert not torch.allclose(net(second, memory)[0], net(second)[0])


def test_inputs_are_left_as_they_were(make_net):
    net = make_net()
    _, memory = net(torch.randint(11, (2, 5)))
    tokens = torch.randint(11, (2, 5))
    kept = copy.deepcopy((tokens, memory.h_NBMD, memory.filled_B))
    net.train()(tokens, memory)
    found = (tokens, memory.h_NBMD, memory.filled_B)
    assert all(torch.equal(a, b) for a, b in zip(kept, found, strict=True))


def test_no_gradient_reaches_the_memory(make_net):
    net = make_net()
    logits, memory = net(torch.randint(11, (2, 5)))
    assert logits.requires_grad
    assert not memory.h_NBMD.requires_grad


def test_nats_are_minus_the_log_probability_of_the_target(make_net):
    net = make_net()
    tokens, targets = torch.randint(11, (2, 2, 5))
    logits, _ = net(tokens)
    nats, _ = net.loss(tokens, targets)
    expected = -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(nats, expected)


def test_nats_of_a_half_precision_network_are_float32(make_net):
    net = make_net().to(torch.bfloat16)
    tokens, targets = torch.randint(11, (2, 2, 5))
    nats, memory = net.loss(tokens, targets)
    assert nats.dtype == torch.float32
    assert memory.h_NBMD.dtype == torch.bfloat16


def test_a_memory_of_other_rows_is_refused(make_net):
    net = make_net()
    with pytest.raises(ValueError, match="memory has 3 rows, the tokens 2"):
        net(torch.randint(11, (2, 5)), net.empty_memory(3))


def test_dropout_is_of_training_only(make_net):
    net = make_net(dropout=0.3, dropatt=0.3)
    tokens = torch.randint(11, (2, 5))
    assert torch.equal(net(tokens)[0], net(tokens)[0])
    net.train()
    assert not torch.equal(net(tokens)[0], net(tokens)[0])


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
def test_it_has_the_parameters_of_the_paper(make_net, changes, expected):
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
def test_learned_positions_begin_as_matrices_do_and_their_biases_at_zero(positions):
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


def test_recurrence_reads_the_layer_below_or_its_own(make_net):
    tokens = torch.randint(11, (2, 6))
    below, same = make_net(), make_net(memory_source="same_layer")
    same.load_state_dict(below.state_dict())
    _, memory = below(tokens)
    _, above = same(tokens)
    torch.testing.assert_close(above.h_NBMD[0], memory.h_NBMD[1])
    last, _ = below.hidden(tokens)
    torch.testing.assert_close(above.h_NBMD[1], last.detach())
    assert not torch.allclose(same(tokens, above)[0], below(tokens, memory)[0])


def test_queries_are_normalised_with_pre_and_not_with_pre_keys(make_net):
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
        *(
            {"kernel": kernel, "norm": norm}
            for kernel in sorted(KERNELS)
            for norm in ("post", "pre")
        ),
        *({"positions": name, "clamp_len": 16} for name in sorted(SCHEMES)),
        {"cutoffs": (3, 6), "div_val": 2, "proj_init_std": 0.1},
        {"d_embed": 8, "loss_chunk_size": 5, "proj_init_std": 0.1},
    ],
    ids=str,
)
def test_one_batch_can_be_learnt_by_heart(changes):
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
