"""Bfloat16 weights equal products of rounded numbers, and are refused if unsupported."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import nn

from txl_lightning.model import CachedReader, pack_weights
from txl_lightning.model.parts import PackedLinear


@pytest.mark.bfloat16
@pytest.mark.parametrize(
    ("rows", "width", "has_bias"), [(1, 1, True), (3, 5, False), (41, 410, True), (2, 64, False)]
)
@torch.inference_mode()
def test_a_bfloat16_layer_multiplies_rounded_numbers(rows, width, has_bias):
    linear, x = nn.Linear(width, 7, bias=has_bias), torch.randn(2, rows, width)
    bias = linear.bias.double() if has_bias else 0
    expected = x.bfloat16().double() @ linear.weight.bfloat16().double().mT + bias
    torch.testing.assert_close(
        PackedLinear(linear, torch.bfloat16)(x), expected.bfloat16(), rtol=1e-2, atol=1e-2
    )


@pytest.mark.bfloat16
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "pre_kv"}, {"norm": "pre"}, {"positions": "absolute_sinusoidal"}],
)
@torch.inference_mode()
def test_bfloat16_weights_change_nats_only_slightly(make_net, changes):
    net, tokens = make_net(d_model=32, **changes).float(), torch.randint(11, (3, 3, 9))
    results = []
    for packed in (net, pack_weights(deepcopy(net), "bf16")):
        reader, memory = CachedReader(packed), None
        for segment, targets in pairwise(tokens):
            nats, memory = reader.loss(segment, targets, memory)
        results.append(nats)
    assert net.compute_dtype == torch.float32
    # Three times what was measured.
    assert 0 < (results[0] - results[1]).abs().mean() <= 0.054


HALF = {"dtype": torch.bfloat16}


@pytest.mark.parametrize(
    ("weights", "change", "expected"),
    [
        ("int4", {}, "one of float32, bf16"),
        ("bf16", {"device": "meta"}, "float32 on this meta"),
        pytest.param("bf16", HALF, "a network in float32", marks=pytest.mark.bfloat16),
    ],
)
def test_narrow_weights_are_refused_where_unsupported(make_net, weights, change, expected):
    net = make_net().float().to(**change) if change else make_net()
    with pytest.raises(ValueError, match=f"weights: invalid {weights}; expected {expected}"):
        pack_weights(net, weights)
