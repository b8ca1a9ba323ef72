"""Attention distance is counted exactly, for every scheme, and recording changes nothing."""

import numpy as np
import pytest
import torch

from txl_lightning.analysis import attention_distance
from txl_lightning.analysis.attention_distance import measure_attention_distance, record_attention
from txl_lightning.model.kernels import reference
from txl_lightning.model.positions import SCHEMES


def record_calls(net, tokens_BL, memory) -> list[tuple]:
    """Return the arguments of each layer's kernel."""
    calls = []
    for layer in net.layers:
        kernel = layer.attention.attend
        layer.attention.attend = lambda *args, kernel=kernel: calls.append(args) or kernel(*args)
    net.hidden(tokens_BL, memory)
    return calls


@pytest.mark.parametrize(
    ("positions", "mem_len"),
    [("sinusoidal", 0), ("sinusoidal", 9), *[(name, 4) for name in SCHEMES]],
)
def test_recorded_sums_equal_a_count_of_the_weights_of_the_reference(make_net, positions, mem_len):
    learned = positions not in ("sinusoidal", "absolute_sinusoidal")
    net = make_net(positions=positions, clamp_len=9 if learned else None, mem_len=mem_len)
    tokens_BL = torch.randint(11, (2, 5))
    _, memory = net.hidden(torch.randint(11, (2, 9)))
    with record_attention(net) as sums:
        net.hidden(tokens_BL, memory)
    S = mem_len + 5
    for arguments, layer_sums in zip(record_calls(net, tokens_BL, memory), sums, strict=True):
        q_BLHK, kv_BS2HK, terms, mask, _ = arguments
        weight_BHLS = reference.weigh_states(q_BLHK, kv_BS2HK[:, :, 0], terms, mask.mask_BLS)
        distance_HS = torch.zeros(2, S).double()
        memory_H = torch.zeros(2).double()
        for (_, head, query, state), weight in np.ndenumerate(weight_BHLS.numpy(force=True)):
            if state <= mem_len + query:
                distance_HS[head, mem_len + query - state] += weight
            memory_H[head] += weight if state < mem_len else 0
        torch.testing.assert_close(layer_sums.distance_HS, distance_HS)
        torch.testing.assert_close(layer_sums.memory_H, memory_H)
        assert layer_sums.distance_HS.sum(dim=1).tolist() == pytest.approx([10, 10])


@pytest.mark.parametrize("kernel", ["reference", "per_head"])
def test_recording_changes_no_output_and_restores_the_kernels(make_net, kernel):
    net = make_net(kernel=kernel)
    tokens_BL = torch.randint(11, (2, 5))
    kernels = [layer.attention.attend for layer in net.layers]
    expected = net(tokens_BL)[0]
    with pytest.raises(KeyError), record_attention(net):  # noqa: PT012
        assert torch.equal(net(tokens_BL)[0], expected)
        raise KeyError
    assert [layer.attention.attend for layer in net.layers] == kernels


@pytest.mark.parametrize("tgt_len", [1, 4])
def test_mean_distance_of_uniform_attention_is_half_the_context(make_net, tgt_len):
    net = make_net(mem_len=6)
    with torch.no_grad():
        for parameter in net.positions.parameters():
            parameter.zero_()
        for layer in net.layers:
            layer.attention.q_net.weight.zero_()
    rows = measure_attention_distance(net, np.arange(60) % 11, batch_size=2, tgt_len=tgt_len)
    assert [(row["layer"], row["head"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    in_sight_L = 6 + np.arange(1, tgt_len + 1)
    for row in rows:
        assert row["mean"] == pytest.approx(np.mean((in_sight_L - 1) / 2))
        assert row["on_memory"] == pytest.approx(np.mean(6 / in_sight_L))


@pytest.mark.parametrize(
    ("share_S", "expected"), [([0, 0, 0, 0, 0, 0.3], [5, 5, 5, 5]), ([0.1] * 10, [4.5, 0, 4, 8])]
)
def test_quantile_is_the_first_distance_that_reaches_it(share_S, expected):
    found = attention_distance.summarize_distances(np.array(share_S))
    assert list(found.values()) == pytest.approx(expected)


def test_text_too_short_to_fill_the_memory_is_refused(make_net):
    with pytest.raises(ValueError, match="tokens: invalid 20; expected at least 26"):
        measure_attention_distance(make_net(), np.arange(20) % 11, batch_size=2, tgt_len=4)
    assert measure_attention_distance(make_net(), np.arange(26) % 11, batch_size=2, tgt_len=4)
