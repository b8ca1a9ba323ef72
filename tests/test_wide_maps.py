"""Wide linear maps, a candidate of the check of a GPU, compute what plain ones do.

Small whole numbers have exact sums, in any order and width.
"""

import copy
from contextlib import nullcontext

import pytest
import torch

from experiments.gpu import kernels, wide
from tests.helpers.late_device import Recorder, list_tensors
from txl_lightning import TransformerXLConfig
from txl_lightning.model import precision
from txl_lightning.model.parts import join
from txl_lightning.model.transformer_xl import FeedForward, RelativeAttention

CONFIG = TransformerXLConfig(n_token=9, n_layer=1, d_model=10, n_head=2, d_head=5, d_inner=21)
B = 2
M = 4
L = 8


@pytest.fixture(autouse=True)
def _a_cpu_that_needs_aligned_rows(monkeypatch):
    monkeypatch.setitem(precision.MULTIPLES, "cpu", 8)


def draw(*shape):
    return torch.randint(-1, 2, shape).float()


def make_maps(kind):
    """Return a part of a layer with whole numbers as weights, and the same with wide maps."""
    plain = kind(CONFIG)
    with torch.no_grad():
        for weight in plain.parameters():
            weight.copy_(draw(*weight.shape))
    widened = copy.deepcopy(plain)
    wide.widen_maps(widened)
    return plain, widened


def project(part, h_BLD, memory_BMD):
    return [part.o_net(part.q_net(h_BLD)), part.kv_net(join(memory_BMD, h_BLD))]


def feed_forward(part, h_BLD, _):
    return [part.net(h_BLD)]


def differentiate(part, compute, dtype):
    """Return outputs of a part of a layer in training, and the gradient of each input."""
    torch.manual_seed(1)
    h_BLD = draw(B, L, CONFIG.d_model).to(dtype).requires_grad_()
    memory_BMD = draw(B, M, CONFIG.d_model).to(dtype)
    casts = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
    with casts if dtype == torch.bfloat16 else nullcontext():
        outputs = compute(part, h_BLD, memory_BMD)
    leaves = [h_BLD, *(weight for weight in part.parameters() if weight.requires_grad)]
    d_outs = [draw(*out.shape).to(out.dtype) for out in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, d_outs, allow_unused=True)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("kind", "compute"), [(RelativeAttention, project), (FeedForward, feed_forward)]
)
def test_wide_maps_have_the_outputs_and_gradients_of_plain_ones(kind, compute, dtype):
    """From float32 weights; in float32, nothing is wider."""
    found = [differentiate(part, compute, dtype) for part in make_maps(kind)]
    assert len(found[0]) == len(found[1])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert sum(each is not None and bool(each.any()) for each in found[0]) >= 5


@pytest.mark.parametrize(
    ("kind", "compute"), [(RelativeAttention, project), (FeedForward, feed_forward)]
)
def test_each_product_of_wide_maps_has_aligned_rows(kind, compute):
    plain, widened = make_maps(kind)
    sizes = []
    for part in (plain, widened):
        with Recorder() as recorder:
            differentiate(part, compute, torch.bfloat16)
        products = [args for func, args, *_ in recorder.calls if func._schema.name.endswith("mm")]
        sizes.append({n for each in list_tensors(products) for n in each.shape[-2:]})
    assert any(n % 8 for n in sizes[0])
    assert not any(n % 8 for n in sizes[1])


def test_inner_units_stay_wide_between_two_maps():
    _, widened = make_maps(FeedForward)
    seen = []
    widened.net[1].register_forward_hook(lambda *inputs: seen.append(inputs[-1].size(-1)))
    differentiate(widened, feed_forward, torch.bfloat16)
    assert seen == [24]


@pytest.mark.parametrize("missing", [None, "projections, wide", "feed-forward"])
def test_the_rule_for_widths_compares_all_maps_or_says_nothing(missing):
    seconds = {"projections": 2.0, "feed-forward": 4.0, "attention": 9.0}
    seconds |= {"projections, wide": 1.0, "feed-forward, wide": 2.0}
    seconds.pop(missing, None)
    found = [*kernels.apply_rule(kernels.UNALIGNED, kernels.WIDE, seconds)]
    assert [each["share of the time of plain ones"] for each in found] == [0.5] * (not missing)
    assert all(each["fulfilled"] for each in found)
