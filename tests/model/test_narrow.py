"""Narrow weights equal products of rounded numbers, and are refused if unsupported."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from txl_lightning.model import CachedReader, narrow_weights
from txl_lightning.model.narrow import Bfloat16Linear, Int8Linear

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="the CPU does not support these products",
)
SIZES = [(1, 1, True), (3, 5, False), (41, 410, True), (2, 64, False)]


def round_to_127(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (x / scale).round(), scale


@pytest.mark.parametrize(("rows", "width", "has_bias"), SIZES)
@torch.inference_mode()
def test_a_narrow_layer_multiplies_rounded_numbers(rows, width, has_bias):
    linear = nn.Linear(width, 7, bias=has_bias)
    linear.weight[3], x = 0, torch.randn(2, rows, width)
    x[0, 0] = 0
    bias = linear.bias.double() if has_bias else 0
    (x_whole, x_scale), (weight, w_scale) = round_to_127(x), round_to_127(linear.weight)
    product = x_whole.double() @ weight.double().mT
    expected = product * x_scale.double() * w_scale.double().mT + bias
    torch.testing.assert_close(Int8Linear(linear)(x).double(), expected, rtol=1e-5, atol=1e-6)
    wide = x.bfloat16().double() @ linear.weight.bfloat16().double().mT + bias
    torch.testing.assert_close(Bfloat16Linear(linear)(x), wide.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("changes", [{}, {"norm": "pre_kv"}, {"positions": "absolute_sinusoidal"}])
@pytest.mark.parametrize(("weights", "error"), [("float32", 0), ("bf16", 0.2), ("int8", 0.2)])
@torch.inference_mode()
def test_narrow_weights_change_nats_only_slightly(make_net, changes, weights, error):
    net, tokens = make_net(d_model=32, **changes).float(), torch.randint(11, (3, 3, 9))
    results = []
    for narrow in ("float32", weights):
        reader, memory = CachedReader(narrow_weights(net, narrow)), None
        for segment, targets in pairwise(tokens):
            nats, memory = reader.loss(segment, targets, memory)
        results.append(nats)
    assert net.compute_dtype == torch.float32
    assert 0 <= (results[0] - results[1]).abs().mean() <= error
    assert torch.equal(*results) == (weights == "float32")


@torch.inference_mode()
def test_int8_result_of_a_token_does_not_depend_on_other_tokens():
    linear, x = Int8Linear(nn.Linear(8, 5)), torch.randn(6, 8)
    louder = torch.cat([x[:3], 100 * x[3:]])
    assert torch.equal(linear(x)[:3], linear(louder)[:3])


@pytest.mark.parametrize(
    ("weights", "change", "expected"),
    [
        ("int4", {}, "one of float32, bf16, int8"),
        ("int8", {"device": "meta"}, "float32 on this meta"),
        ("bf16", {"dtype": torch.bfloat16}, "a network in float32"),
    ],
)
def test_narrow_weights_are_refused_where_unsupported(make_net, weights, change, expected):
    net = make_net().float().to(**change) if change else make_net()
    with pytest.raises(ValueError, match=f"weights: invalid {weights}; expected {expected}"):
        narrow_weights(net, weights)
