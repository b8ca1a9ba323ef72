"""Nats by states and a table equal those of the definition, at awkward sizes, with gradients."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.late_device import LateDevice
from txl_lightning.data.stream import IGNORED
from txl_lightning.model import nats, precision
from txl_lightning.model.nats import nats_of_states

WIDTH = 5
PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.mkldnn._linear_pointwise}


def make_inputs(n_token=23, n_row=9, n_more=0, dtype=torch.float64):
    """Return h, weight, bias and more, of which a gradient is asked, and targets."""
    shapes = [(n_row, WIDTH), (n_token, WIDTH), (n_token,), (n_row, n_more)]
    inputs = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    target_Y = torch.randint(n_token + n_more, (n_row,))
    target_Y[1:2] = IGNORED
    target_Y[:1] = n_token + n_more - 1
    return [*inputs[:3], inputs[3] if n_more else None], target_Y


def score_slowly(inputs, target_Y):
    h_YE, weight_VE, bias_V, more_YC = inputs
    logits_YV = h_YE @ weight_VE.t() + bias_V
    both = logits_YV if more_YC is None else torch.cat([logits_YV, more_YC], dim=-1)
    return F.cross_entropy(both, target_Y, reduction="none")


def score(inputs, target_Y, chunk_size=None):
    *of_table, more_YC = inputs
    return nats_of_states(*of_table, target_Y, chunk_size, more_YC)


def differentiate(nats_Y, inputs, weight_Y=None):
    """Return nats and every gradient; those of tokens have different weights by default."""
    weight_Y = torch.rand(len(nats_Y), dtype=nats_Y.dtype) if weight_Y is None else weight_Y
    leaves = [each for each in inputs if each is not None]
    return [nats_Y, *torch.autograd.grad((nats_Y * weight_Y).sum(), leaves)]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("n_more", [0, 3])
@pytest.mark.parametrize("chunk_size", [None, 1, 4, 9, 50])
@pytest.mark.parametrize("cached", [1, 50, 1 << 18])
def test_nats_and_gradients_are_those_of_the_definition(
    monkeypatch, chunk_size, n_more, cached, elsewhere
):
    monkeypatch.setattr(nats, "CACHED_LOGITS", cached)
    inputs, target_Y = make_inputs(n_more=n_more)
    weight_Y = torch.rand(len(target_Y), dtype=torch.float64)
    expected = differentiate(score_slowly(inputs, target_Y), inputs, weight_Y)
    if elsewhere:
        with LateDevice(forbids=True):
            actual = differentiate(score(inputs, target_Y, chunk_size), inputs, weight_Y)
    else:
        actual = differentiate(score(inputs, target_Y, chunk_size), inputs, weight_Y)
    assert expected[0][1] == 0
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("n_row", [0, 1, 2])
@pytest.mark.parametrize("n_token", [1, 9, 10, 11])
def test_few_tokens_and_small_vocabularies_have_the_nats_of_the_definition(n_token, n_row):
    inputs, target_Y = make_inputs(n_token, n_row)
    weight_Y = torch.ones(n_row, dtype=torch.float64)
    actual, expected = (
        differentiate(each(inputs, target_Y), inputs, weight_Y) for each in (score, score_slowly)
    )
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_added_in_float32_and_equal_weights_are_not_all_rounded_alike(
    dtype, chunk_size
):
    inputs, target_Y = make_inputs(n_row=400, n_more=2, dtype=torch.float32)
    weight_Y = torch.full((400,), 1 / 399)
    expected = differentiate(score_slowly(inputs, target_Y), inputs, weight_Y)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        nats_Y = score(inputs, target_Y, chunk_size)
    actual = differentiate(nats_Y, inputs, weight_Y)
    within = 1e-5 if dtype == torch.float32 else 1e-2
    assert [each.dtype for each in actual] == [torch.float32] * 5
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).norm() <= within * other.norm()


def test_a_target_that_is_almost_sure_has_its_small_gradient_in_bfloat16():
    bias_V = torch.zeros(23)
    bias_V[7] = 12.0
    h_YE = torch.zeros(3, WIDTH)
    inputs = [h_YE, torch.zeros(23, WIDTH), bias_V.requires_grad_(), None]
    target_Y = torch.full((3,), 7)
    [_, expected] = differentiate(score_slowly(inputs, target_Y), inputs[2:3], torch.ones(3))
    with torch.autocast("cpu", torch.bfloat16):
        nats_Y = score(inputs, target_Y)
    [_, actual] = differentiate(nats_Y, inputs[2:3], torch.ones(3))
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0)


@pytest.mark.parametrize("n_more", [0, 3])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_widths_that_a_device_multiplies_fast_change_neither_nats_nor_gradients(
    monkeypatch, chunk_size, n_more
):
    inputs, target_Y = make_inputs(n_more=n_more, dtype=torch.bfloat16)
    weight_Y = torch.rand(len(target_Y))
    expected = differentiate(score(inputs, target_Y, chunk_size), inputs, weight_Y)
    monkeypatch.setitem(precision.MULTIPLES, "cpu", 8)
    actual = differentiate(score(inputs, target_Y, chunk_size), inputs, weight_Y)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("frozen", [0, 1, 2, 3])
def test_what_is_frozen_gets_no_gradient_and_the_others_theirs(frozen):
    inputs, target_Y = make_inputs(n_more=2)
    inputs[frozen].requires_grad_(False)
    leaves = [each for each in inputs if each.requires_grad]
    weight_Y = torch.rand(len(target_Y), dtype=torch.float64)
    actual, expected = (
        differentiate(each(inputs, target_Y), leaves, weight_Y) for each in (score, score_slowly)
    )
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_a_backward_pass_may_be_repeated(chunk_size):
    inputs, target_Y = make_inputs(n_more=2)
    nats_Y = score(inputs, target_Y, chunk_size)
    first, second = (torch.autograd.grad(nats_Y.sum(), inputs, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_second_derivatives_are_those_of_the_definition_where_states_come_from_the_table(
    chunk_size,
):
    results = []
    inputs, target_Y = make_inputs(n_more=2)
    for each in (score_slowly, lambda *of: score(*of, chunk_size)):
        _, weight_VE, bias_V, more_YC = inputs
        h_YE = weight_VE[: len(target_Y)].tanh()
        nats_Y = each([h_YE, weight_VE, bias_V, more_YC], target_Y)
        leaves = [weight_VE, bias_V, more_YC]
        gradients = torch.autograd.grad(nats_Y.square().sum(), leaves, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in gradients)
        results.append(torch.autograd.grad(penalty, leaves))
    torch.testing.assert_close(*results)


class Counter(TorchDispatchMode):
    """Counts products, and casts of a tensor of a shape."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.products = self.casts = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func.overloadpacket in PRODUCTS
        is_cast = func.overloadpacket == torch.ops.aten._to_copy
        self.casts += is_cast and args[0].shape == self.shape
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("chunk_size", "products"), [(None, 1 + 3), (3, 3 * 2 + 3 * 3)])
def test_logits_of_one_chunk_are_computed_once_and_the_table_is_cast_once(chunk_size, products):
    inputs, target_Y = make_inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), Counter(inputs[1].shape) as forward:
        nats_Y = score(inputs, target_Y, chunk_size)
    assert forward.casts == 1
    with Counter(()) as backward:
        nats_Y.sum().backward()
    # Logits, and gradients of states, table and bias.
    assert forward.products + backward.products == products


def test_of_large_vocabularies_one_tensor_of_logits_is_kept_until_the_backward_pass():
    inputs, target_Y = make_inputs(n_token=1000, dtype=torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        score(inputs, target_Y)
    assert sum(each.numel() >= 9 * 1000 for each in kept) == 1
