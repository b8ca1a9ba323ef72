"""Products of oneDNN equal torch's, forward and gradients; packed weights equal plain ones."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from txl_lightning.model import pack_weights, packing, parts
from txl_lightning.model.packing import PackedLinear
from txl_lightning.model.parts import Linear, join, multiply_heads
from txl_lightning.model.reading import Reader

SHAPES = [(1, 1, 1), (3, 5, 41), (7, 41, 5), (2, 64, 48)]  # rows, inputs and outputs


@pytest.fixture
def onednn(monkeypatch):
    """oneDNN is used on any processor; the second value counts its products."""
    calls = []
    multiply = parts.multiply_with_onednn

    def count(*args):
        calls.append(args[0].shape)
        return multiply(*args)

    for module in (parts, packing):
        monkeypatch.setattr(module, "is_onednn_faster", lambda: True)
    monkeypatch.setattr(parts, "multiply_with_onednn", count)
    return calls


def gradients(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return [output.detach(), *torch.autograd.grad((output * weight).sum(), inputs)]


@pytest.mark.parametrize(("rows", "n_in", "n_out"), SHAPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_linear_map_by_onednn_has_the_outputs_and_gradients_of_torch(
    onednn, rows, n_in, n_out, has_bias
):
    ours = Linear(n_in, n_out, bias=has_bias)
    theirs = nn.Linear(n_in, n_out, bias=has_bias).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, rows, n_in, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    actual = gradients(ours(x), [x, *ours.parameters()])
    expected = gradients(theirs(wide), [wide, *theirs.parameters()])
    assert len(onednn) == 3
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("needs_memory", [True, False])
def test_a_map_of_memory_and_segment_by_onednn_has_the_gradients_of_their_concatenation(
    onednn, needs_memory
):
    layer = Linear(5, 12, bias=False)
    memory = torch.randn(2, 3, 5, requires_grad=needs_memory)
    segment = torch.randn(2, 4, 5)
    inputs = [*([memory] if needs_memory else []), segment.requires_grad_(), layer.weight]
    actual = gradients(layer(join(memory, segment)), inputs)
    product = torch.cat([memory, segment], dim=1).double() @ layer.weight.double().mT
    expected = gradients(product, inputs)
    assert len(onednn) == 3
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-5)


def test_a_second_map_of_memory_and_segment_has_the_whole_gradient():
    maps = Linear(5, 6), Linear(6, 4)
    memory = torch.randn(2, 3, 5)
    segment = torch.randn(2, 4, 5, requires_grad=True)
    inputs = [segment, *maps[0].parameters(), *maps[1].parameters()]
    actual = gradients(maps[1](maps[0](join(memory, segment))), inputs)
    whole = torch.cat([memory, segment], dim=1)
    for each in maps:
        whole = whole @ each.weight.mT + each.bias
    for a, b in zip(actual, gradients(whole, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("is_transposed", [True, False])
@torch.no_grad()
def test_products_of_heads_by_onednn_are_those_of_each_head_in_any_layout(onednn, is_transposed):
    x_HYA = torch.randn(3, 5, 41)
    weight_HCA = torch.randn(3, 7, 50)[..., :41]
    if is_transposed:
        weight_HCA = torch.randn(3, 41, 7).mT
    expected = torch.einsum("hya,hca->hyc", x_HYA, weight_HCA)
    torch.testing.assert_close(multiply_heads(x_HYA, weight_HCA), expected, rtol=1e-5, atol=1e-5)
    assert len(onednn) == 3


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"cutoffs": (4,), "div_val": 2}])
def test_a_network_by_onednn_has_the_nats_and_gradients_of_float64(make_net, onednn, changes):
    net = make_net(d_model=32, **changes).float()
    tokens = torch.randint(11, (2, 9))
    wide = deepcopy(net).double()
    results = []
    for each in (net, wide):
        _, memory = each.loss(tokens, tokens)
        nats, _ = each.loss(tokens, tokens, memory)
        results.append(gradients(nats, list(each.parameters())))
    assert onednn
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


@torch.inference_mode()
def test_packed_float32_weights_give_the_nats_of_plain_ones(make_net, onednn):
    net = make_net().float()
    tokens = torch.randint(11, (2, 9))
    expected, _ = Reader(net).loss(tokens, tokens)
    packed = pack_weights(deepcopy(net), "float32")
    assert any(isinstance(module, PackedLinear) for module in packed.modules())
    actual, _ = Reader(packed).loss(tokens, tokens)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["float64", "autocast", "no rows"])
def test_other_precisions_and_empty_inputs_are_multiplied_by_torch(onednn, case):
    dtype = torch.float64 if case == "float64" else torch.float32
    layer = Linear(3, 4, dtype=dtype)
    x = torch.randn(0 if case == "no rows" else 2, 3, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        out = layer(x)
    assert not onednn
    assert out.dtype == (torch.bfloat16 if case == "autocast" else dtype)
