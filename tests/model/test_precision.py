"""Weights of other precisions: for one call, where gradients reach their own; or packed."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from txl_lightning import stream_nats
from txl_lightning.model import has_bfloat16_units, pack_weights
from txl_lightning.model.packing import PackedLinear
from txl_lightning.model.parts import LayerNorm, Linear
from txl_lightning.model.reading import Reader

INSTRUCTIONS = {"avx512_bf16": True, "amx_bf16": False}


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"cpu_name": "Intel Xeon", **INSTRUCTIONS}, False),
        ({"cpu_name": "Intel Xeon", **INSTRUCTIONS, "amx_bf16": True}, True),
        ({"cpu_name": "AMD EPYC-Zen4", **INSTRUCTIONS}, True),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False}, False),
        ({}, False),
    ],
)
def test_bfloat16_is_chosen_where_the_units_multiply_it_faster(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert has_bfloat16_units(torch.device("cpu")) is expected
    assert has_bfloat16_units(torch.device("cuda"))


@pytest.mark.bfloat16
@pytest.mark.parametrize(
    ("rows", "width", "has_bias"), [(1, 1, True), (3, 5, False), (41, 410, True), (2, 64, False)]
)
@torch.inference_mode()
def test_a_bfloat16_layer_multiplies_rounded_numbers(rows, width, has_bias):
    linear = nn.Linear(width, 7, bias=has_bias)
    x = torch.randn(2, rows, width)
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
    net = make_net(d_model=32, **changes).float()
    tokens = torch.randint(11, (3, 3, 9))
    results = []
    for packed in (net, pack_weights(deepcopy(net), "bf16")):
        reader = Reader(packed)
        memory = None
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


def make_parts() -> nn.Sequential:
    parts = nn.Sequential(Linear(3, 4), nn.ModuleList([LayerNorm(4)])[0], Linear(4, 4))
    return parts.append(nn.Sequential(nn.ReLU(), Linear(4, 2, bias=False)))


class OtherLinear(Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


def copy_parts(parts):
    copy = deepcopy(parts)
    for weight in copy.parameters():
        nn.init.normal_(weight)
    return copy


def load_other_weights(parts):
    parts.load_state_dict({name: w + 1 for name, w in parts.state_dict().items()}, assign=True)


def share_a_weight(parts):
    parts[2].bias = parts[0].bias


CHANGES = {
    "nothing": lambda parts: None,
    "a deep copy": copy_parts,
    "loaded weights": load_other_weights,
    "moved weights": lambda parts: parts.to("meta").to_empty(device="cpu").apply(fill),
    "another precision": lambda parts: parts.double(),
    "shared weights": share_a_weight,
    "another module": lambda parts: parts.set_submodule("3.1", nn.Linear(4, 2)),
    "another module within": lambda parts: parts[3].append(nn.Linear(2, 5)) and None,
    "a derived class": lambda parts: parts.set_submodule("0", OtherLinear(3, 4)),
    "a patched forward": lambda parts: setattr(
        parts[2], "forward", lambda x: torch.nn.functional.linear(x, parts[2].weight, parts[2].bias)
    ),
    "a parametrization": lambda parts: weight_norm(parts[2]) and None,
    "a frozen weight": lambda parts: parts[2].requires_grad_(False) and None,
    "no bias": lambda parts: parts[0].register_parameter("bias", None),
    "a new weight": lambda parts: parts[3][1].register_parameter(
        "bias", nn.Parameter(torch.ones(2))
    ),
}


def fill(module):
    for weight in module.parameters(recurse=False):
        nn.init.normal_(weight)


def call_under_autocast(parts, x):
    with torch.autocast("cpu", torch.bfloat16):
        return parts(x)


def call_and_differentiate(call, parts, x):
    y = call(parts, x.clone())
    weights = [weight for weight in parts.parameters() if weight.requires_grad]
    return [y, *torch.autograd.grad(y.float().square().sum(), weights)]


def call_functionally(parts, x):
    weights = {name: weight.to(x.dtype) for name, weight in parts.named_parameters()}
    return functional_call(parts, weights, (x,))


ROUNDED = {
    "shared weights": "their gradients are added before they are rounded, or after",
    "another module": "autocast leaves the weights of norms in float32",
    "another module within": "the same",
    "a derived class": "the same",
    "a patched forward": "the same",
    "a parametrization": "the same, and weights are rounded after it, or before",
}


@pytest.mark.parametrize("change", CHANGES)
def test_cast_weights_give_what_a_functional_call_gives_after_any_change(change):
    parts = make_parts()
    x = torch.randn(5, 3, dtype=torch.bfloat16)
    call_and_differentiate(call_under_autocast, parts, x)
    parts = CHANGES[change](parts) or parts
    before = dict(parts.named_parameters(remove_duplicate=False))
    expected = call_and_differentiate(call_functionally, parts, x)
    actual = call_and_differentiate(call_under_autocast, parts, x)
    assert [each.dtype for each in actual] == [each.dtype for each in expected]
    within = 5e-2 if change in ROUNDED else 0
    torch.testing.assert_close(actual, expected, rtol=within, atol=within)
    after = dict(parts.named_parameters(remove_duplicate=False))
    assert before.keys() == after.keys()
    assert all(after[name] is weight for name, weight in before.items())


@pytest.mark.parametrize("kinds", [("float32", "bf16"), ("bf16", "bf16"), ("evaluate", "train")])
def test_threads_with_and_without_autocast_share_a_network(make_net, kinds):
    net = make_net(d_model=16).float()
    tokens = torch.randint(11, (2, 9))
    before = list(net.parameters())

    def read(kind):
        if kind == "evaluate":
            return stream_nats(net, tokens[0], batch_size=1, tgt_len=3)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind != "float32"):
            nats, _ = net.loss(tokens, tokens)
        if kind == "train":
            torch.autograd.grad(nats.sum(), list(net.parameters()))
        return nats.detach()

    expected = [read(kind) for kind in kinds]
    with ThreadPoolExecutor(2) as pool:
        futures = [[pool.submit(read, kind) for kind in kinds] for _ in range(60)]
    for pair in futures:
        assert all(map(torch.equal, [future.result() for future in pair], expected))
    after = list(net.parameters())
    assert all(type(weight) is nn.Parameter for weight in after)
    assert [id(weight) for weight in after] == [id(weight) for weight in before]


def test_nothing_in_a_module_changes_while_it_is_called(make_net):
    net = make_net().float()
    found = []
    for module in net.modules():
        module.register_forward_hook(lambda module, *_: found.extend(module.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.randint(11, (2, 9)))
    assert found
    assert {id(weight) for weight in found} <= {id(weight) for weight in net.parameters()}


def test_a_recomputed_call_has_the_same_gradients():
    def call_recomputed(*inputs):
        return checkpoint(call_under_autocast, *inputs, use_reentrant=False)

    parts = make_parts()
    x = torch.randn(5, 3, dtype=torch.bfloat16)
    expected = call_and_differentiate(call_functionally, parts, x)
    assert all(map(torch.equal, call_and_differentiate(call_recomputed, parts, x), expected))


@pytest.mark.parametrize("has_frozen", [False, True])
def test_weights_cast_together_have_the_gradients_of_weights_cast_one_by_one(
    make_net, monkeypatch, has_frozen
):
    net = make_net(n_layer=2).float().eval()
    layer = net.layers[0]
    layer.attention.q_net.weight.requires_grad_(not has_frozen)
    layer.unused = nn.Parameter(torch.ones(3))
    tokens_BL = torch.randint(11, (2, 5))
    gradients = []
    for is_together in (True, False):
        if not is_together:
            name = "txl_lightning.model.precision.CASTS"
            monkeypatch.setattr(name, SimpleNamespace(found={}))
            monkeypatch.setattr("txl_lightning.model.transformer_xl.cast_together", no_cast)
            monkeypatch.setattr("txl_lightning.model.positions.cast_together", no_cast)
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            net.loss(tokens_BL, tokens_BL)[0].sum().backward()
        gradients.append({name: weight.grad for name, weight in net.named_parameters()})
    without = {name for name, gradient in gradients[0].items() if gradient is None}
    frozen = {"layers.0.attention.q_net.weight"} if has_frozen else set()
    assert without == {"layers.0.unused"} | frozen
    for name, gradient in gradients[0].items():
        if name not in without:
            torch.testing.assert_close(gradient, gradients[1][name], rtol=0.02, atol=0.02)


def no_cast(*_):
    return nullcontext()
