"""Every kernel equals the equation, forward and in every gradient, for unusual sizes."""

import math
from itertools import product

import pytest
import torch

from txl_lightning import Memory
from txl_lightning.model.kernels import KERNELS, choose_kernel, per_head, sdpa
from txl_lightning.model.memory import Mask
from txl_lightning.model.positions import DistanceTerms

FAST = sorted(set(KERNELS) - {"auto", "reference"})
CASES = [(*size, "rvub") for size in [(1, 0), (1, 5), (63, 0), (63, 7), (5, 64), (8, 8)]]
CASES += [(5, 7, names) for names in ("rvu", "ru", "rv", "r", "u", "b", "ub", "")]


def make_inputs(tgt_len, mem_len, names="rvu"):
    """Return inputs by name, and the mask of a memory with up to 3 states per row."""
    B = 2
    H = 3
    K = 4
    S = mem_len + tgt_len
    shapes = {"q": (B, tgt_len, H, K), "k": (B, S, H, K), "value": (B, S, H, K)}
    shapes |= {"r": (S + 1, H, K), "u": (H, K), "v": (H, K), "b": (S + 1, H)}
    leaves = {
        name: torch.randn(shapes[name], dtype=torch.float64, requires_grad=True)
        for name in ("q", "k", "value", *names)
    }
    memory = Memory(torch.zeros(1, B, mem_len, 1), torch.tensor([0, 3]).clamp(max=mem_len))
    # The second row's document begins in the middle of the segment.
    start = torch.tensor([[tgt_len], [tgt_len // 2]])
    place = torch.arange(tgt_len).expand(B, -1)
    doc_pos = torch.where(place < start, mem_len + place, place - start)
    return leaves, Mask(memory.attention_mask(tgt_len, doc_pos))


def make_terms(leaves):
    letters = {"r": "r_THK", "u": "u_HK", "v": "v_HK", "b": "b_TH"}
    return DistanceTerms(**{letters[x]: leaves[x] for x in letters if x in leaves})


def run(kernel, leaves, mask, dropatt=0.0):
    kv = torch.stack([leaves["k"], leaves["value"]], dim=2)
    return KERNELS[kernel](leaves["q"], kv, make_terms(leaves), mask, dropatt)


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize(("tgt_len", "mem_len", "names"), CASES)
def test_kernel_equals_the_reference_with_every_gradient(kernel, tgt_len, mem_len, names):
    leaves, mask = make_inputs(tgt_len, mem_len, names)
    slow = run("reference", leaves, mask)
    fast = run(kernel, leaves, mask)
    weight = torch.randn_like(slow)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    slow_gradients = torch.autograd.grad((slow * weight).sum(), list(leaves.values()))
    fast_gradients = torch.autograd.grad((fast * weight).sum(), list(leaves.values()))
    for name, expected, actual in zip(leaves, slow_gradients, fast_gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(("tgt_len", "mem_len", "names"), CASES)
def test_kernel_without_gradients_equals_the_reference(tgt_len, mem_len, names):
    leaves, mask = make_inputs(tgt_len, mem_len, names)
    slow = run("reference", leaves, mask)
    q, *kept = (leaves[name].detach() for name in ("q", "k", "value"))
    terms = make_terms(leaves).lay_out()
    with torch.no_grad():
        fast = per_head.attend(q, tuple(kept), terms, mask, 0.0)
    torch.testing.assert_close(fast, slow.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)]
)
def test_kernel_error_is_within_its_precision(kernel, dtype, tolerance):
    leaves, mask = make_inputs(8, 9)
    exact = run("reference", leaves, mask)
    narrow = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in leaves.items()}
    actual = run(kernel, narrow, mask)
    assert actual.dtype == dtype
    assert (actual.double() - exact).abs().max() < tolerance * exact.abs().max()
    exact_gradients = torch.autograd.grad(exact.sum(), list(leaves.values()))
    gradients = torch.autograd.grad(actual.sum(), list(narrow.values()))
    for expected, gradient in zip(exact_gradients, gradients, strict=True):
        limit = 4 * tolerance * max(expected.abs().max().item(), 1.0)
        assert (gradient.double() - expected).abs().max() < limit


@pytest.mark.parametrize("padded", [sdpa.HEAD_MULTIPLES, sdpa.DISTANCE_MULTIPLES])
@pytest.mark.parametrize(("tgt_len", "mem_len"), [(9, 7), (9, 6), (1, 13), (12, 0)])
@pytest.mark.parametrize("terms", ["rvub", "rvu", "ub"])
def test_what_is_padded_for_cuda_has_the_numbers_of_the_unpadded(
    monkeypatch, padded, tgt_len, mem_len, terms
):
    leaves, mask = make_inputs(tgt_len, mem_len, terms)
    results = []
    for multiple in (1, 8):
        monkeypatch.setitem(padded, "cpu", multiple)
        out = run("sdpa", leaves, mask)
        assert out.shape == leaves["q"].shape
        results.append([out, *torch.autograd.grad((out**2).sum(), list(leaves.values()))])
    for plain, padded in zip(*results, strict=True):
        torch.testing.assert_close(padded, plain, rtol=1e-12, atol=1e-12)


@pytest.fixture
def _unwritten_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kernel", ["auto", "reference", *FAST])
@pytest.mark.parametrize(("rows", "tgt_len", "mem_len"), [(0, 3, 4), (2, 0, 4), (0, 0, 0)])
@pytest.mark.usefixtures("_unwritten_memory_is_nan")
def test_kernel_without_rows_or_tokens_returns_nothing_and_zero_gradients(
    kernel, rows, tgt_len, mem_len
):
    leaves, mask = make_inputs(tgt_len, mem_len, "rvub")
    for name in ("q", "k", "value"):
        leaves[name] = leaves[name].detach()[:rows].requires_grad_()
    out = run(kernel, leaves, Mask(mask.mask_BLS[:rows]), dropatt=0.1)
    assert out.shape == leaves["q"].shape
    # Of an empty result, sdpa has no gradient.
    options = {"allow_unused": True, "materialize_grads": True}
    for gradient in torch.autograd.grad(out.sum(), list(leaves.values()), **options):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_reference_equals_a_loop_over_pairs():
    tgt_len = 4
    mem_len = 3
    leaves, mask = make_inputs(tgt_len, mem_len)
    actual = run("reference", leaves, mask)
    q, k, value, r, v, u = (leaf.detach() for leaf in leaves.values())
    for row, head, i in product(range(2), range(3), range(tgt_len)):
        scores = {}
        for j in mask.mask_BLS[row, i].nonzero()[:, 0].tolist():
            r_ij = r[len(r) - 1 - (mem_len + i - j), head]
            query = q[row, i, head]
            key = k[row, j, head]
            # The terms (a) to (d) of the paper.
            of_content = query @ key + u[head] @ key
            of_distance = query @ r_ij + v[head] @ r_ij
            scores[j] = math.exp((of_content + of_distance) / 2)
        read = sum(scores[j] * value[row, j, head] for j in scores) / sum(scores.values())
        torch.testing.assert_close(actual[row, i, head], read)


@pytest.mark.parametrize("kernel", ["reference", *FAST])
def test_dropped_attention_keeps_its_mean(kernel):
    leaves, mask = make_inputs(4, 2)
    with torch.no_grad():
        whole = run(kernel, leaves, mask)
        drawn = torch.stack([run(kernel, leaves, mask, dropatt=0.5) for _ in range(300)])
    assert not torch.equal(drawn[0], drawn[1])
    error = drawn.std(dim=0) / math.sqrt(len(drawn))
    assert ((drawn.mean(dim=0) - whole).abs() < 6 * error + 1e-9).all()


@pytest.mark.parametrize("n_score", [1, 20, 60, 10_000])
def test_per_head_gradients_are_exact_with_dropout_and_tiles_of_any_size(monkeypatch, n_score):
    monkeypatch.setattr(per_head, "THREAD_SCORES", n_score)
    leaves, mask = make_inputs(3, 4, "rvub")

    def attend(*tensors):
        torch.manual_seed(1)
        return run("per_head", dict(zip(leaves, tensors, strict=True)), mask, dropatt=0.4)

    assert torch.autograd.gradcheck(attend, tuple(leaves.values()))


@pytest.mark.parametrize(
    ("device", "is_compiled", "kernel"),
    [("cpu", False, "per_head"), ("cpu", True, "sdpa"), ("cuda", False, "sdpa")],
)
def test_automatic_kernel_depends_on_device_and_compilation(device, is_compiled, kernel):
    assert choose_kernel(torch.device(device), is_compiled) == kernel


@pytest.mark.parametrize("kernel", FAST)
def test_dropped_attention_has_gradients_in_half_precision(kernel):
    leaves, mask = make_inputs(4, 2)
    narrow = {name: leaf.detach().bfloat16().requires_grad_() for name, leaf in leaves.items()}
    run(kernel, narrow, mask, dropatt=0.5).sum().backward()
    assert all(leaf.grad.dtype == torch.bfloat16 for leaf in narrow.values())
