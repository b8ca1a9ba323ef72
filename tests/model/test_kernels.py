"""Every kernel is the equation: forward, and every gradient, on awkward sizes."""

import math

import pytest
import torch

from txl_lightning import Memory
from txl_lightning.model.kernels import KERNELS, inference, reference
from txl_lightning.model.positions import DistanceTerms

FAST = sorted(set(KERNELS) - {"reference"})
SIZES = [(1, 0), (1, 5), (63, 0), (63, 7), (5, 64), (8, 8)]
TERMS = ["rvub", "rvu", "ru", "rv", "r", "u", "b", "ub", ""]


def inputs(tgt_len, mem_len, filled=(0, 3), names="rvu"):
    """Leaves by name, and what may be seen of a memory that is filled differently in each row."""
    B, H, K, S = 2, 3, 4, mem_len + tgt_len
    shapes = {"q": (B, tgt_len, H, K), "k": (B, S, H, K), "value": (B, S, H, K)}
    shapes |= {"r": (S + 1, H, K), "u": (H, K), "v": (H, K), "b": (S + 1, H)}
    kept = {name: shapes[name] for name in shapes if name in (*names, "q", "k", "value")}
    leaves = {
        name: torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for name, shape in kept.items()
    }
    fill = torch.tensor(filled).clamp(max=mem_len)
    memory = Memory(torch.zeros(1, B, mem_len, 1), fill)
    # The second row's text begins in the middle of the segment.
    start = torch.tensor([tgt_len, tgt_len // 2])
    place = torch.arange(tgt_len).expand(B, -1)
    past = torch.where(place < start[:, None], mem_len + place, place - start[:, None])
    visible = memory.visible(memory.reach(tgt_len, past))
    return leaves, visible


def run(kernel, leaves, visible, dropatt=0.0):
    attend = KERNELS[kernel]
    return attend(leaves["q"], leaves["k"], leaves["value"], terms_of(leaves), visible, dropatt)


def terms_of(leaves):
    letters = {"r": "r_THK", "u": "u_HK", "v": "v_HK", "b": "b_TH"}
    return DistanceTerms(**{letters[x]: leaves[x] for x in letters if x in leaves})


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize(("tgt_len", "mem_len"), SIZES)
@pytest.mark.parametrize("names", TERMS)
def test_it_equals_the_reference_with_every_gradient(kernel, tgt_len, mem_len, names):
    leaves, visible = inputs(tgt_len, mem_len, names=names)
    slow, fast = run("reference", leaves, visible), run(kernel, leaves, visible)
    weight = torch.randn_like(slow)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    slow_gradients = torch.autograd.grad((slow * weight).sum(), list(leaves.values()))
    fast_gradients = torch.autograd.grad((fast * weight).sum(), list(leaves.values()))
    for name, expected, found in zip(leaves, slow_gradients, fast_gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=name)


def test_a_place_is_lent_again_where_it_fits_in_size_and_precision():
    scratch, float64 = inference.Scratch(), torch.zeros(1, dtype=torch.float64)
    first = scratch.lend("a", (2, 3), float64)
    assert scratch.lend("a", (3, 2), float64).data_ptr() == first.data_ptr()
    assert scratch.lend("b", (3, 2), float64).data_ptr() != first.data_ptr()
    assert scratch.lend("a", (2, 4), float64).shape == (2, 4)
    assert scratch.lend("a", (2, 4), float64.float()).dtype == torch.float32


@pytest.mark.parametrize(("tgt_len", "mem_len"), SIZES)
@pytest.mark.parametrize("names", TERMS)
def test_that_of_evaluation_equals_the_reference(tgt_len, mem_len, names):
    leaves, visible = inputs(tgt_len, mem_len, names=names)
    slow = run("reference", leaves, visible)
    with torch.no_grad():
        prepared = inference.Prepared.of(terms_of(leaves), leaves["value"])
        seen = (leaves["k"], leaves["value"], prepared, inference.Ragged(~visible))
        fast = inference.attend(leaves["q"], *seen, 0.0, inference.Scratch())
    torch.testing.assert_close(fast, slow.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)]
)
def test_it_is_as_exact_as_its_precision(kernel, dtype, tolerance):
    leaves, visible = inputs(8, 9)
    exact = run("reference", leaves, visible)
    narrow = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in leaves.items()}
    found = run(kernel, narrow, visible)
    assert found.dtype == dtype
    scale = exact.abs().max()
    assert (found.double() - exact).abs().max() < tolerance * scale
    gradients = torch.autograd.grad(exact.sum(), list(leaves.values()))
    for expected, got in zip(
        gradients, torch.autograd.grad(found.sum(), list(narrow.values())), strict=True
    ):
        limit = 4 * tolerance * max(expected.abs().max().item(), 1.0)
        assert (got.double() - expected).abs().max() < limit


def test_the_reference_is_a_loop_over_pairs():
    tgt_len, mem_len = 4, 3
    leaves, visible = inputs(tgt_len, mem_len)
    found = run("reference", leaves, visible)
    q, k, value, r, u, v = (leaves[x].detach() for x in ("q", "k", "value", "r", "u", "v"))
    seen_len = mem_len + tgt_len
    for row in range(2):
        for head in range(3):
            for i in range(tgt_len):
                scores = {}
                for j in range(seen_len):
                    if visible[row, i, j]:
                        r_ij = r[seen_len - (mem_len + i - j), head]
                        query, key = q[row, i, head], k[row, j, head]
                        a, b = query @ key, query @ r_ij
                        c, d = u[head] @ key, v[head] @ r_ij
                        scores[j] = math.exp((a + b + c + d) / 2)
                read = sum(scores[j] * value[row, j, head] for j in scores) / sum(scores.values())
                torch.testing.assert_close(found[row, i, head], read)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_what_is_not_seen_changes_nothing(kernel):
    leaves, visible = inputs(5, 6, filled=(2, 4))
    before = run(kernel, leaves, visible)
    seen_BS = visible.any(dim=1)
    with torch.no_grad():
        for name in ("k", "value"):
            leaves[name][~seen_BS] = 1e3
    assert torch.equal(run(kernel, leaves, visible), before)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_zero_queries_and_keys_give_the_mean_of_what_is_seen(kernel):
    leaves, visible = inputs(3, 2, filled=(0, 2))
    with torch.no_grad():
        for name in ("q", "k", "r", "u", "v"):
            leaves[name].zero_()
    found = run(kernel, leaves, visible)
    torch.testing.assert_close(found[0, 0], leaves["value"][0, 2])
    torch.testing.assert_close(found[1, 0], leaves["value"][1, :3].mean(dim=0))
    # A text begins with the second query.
    torch.testing.assert_close(found[1, 2], leaves["value"][1, 3:].mean(dim=0))


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_dropped_attention_keeps_its_mean(kernel):
    leaves, visible = inputs(4, 2)
    with torch.no_grad():
        whole = run(kernel, leaves, visible)
        drawn = torch.stack([run(kernel, leaves, visible, dropatt=0.5) for _ in range(3000)])
    assert not torch.equal(drawn[0], drawn[1])
    error = drawn.std(dim=0) / math.sqrt(len(drawn))
    assert ((drawn.mean(dim=0) - whole).abs() < 6 * error + 1e-9).all()


def test_a_distance_has_the_same_index_however_long_the_memory_is():
    index = reference.index_of_distance
    short, long = index(2, 3, "cpu"), index(2, 9, "cpu")
    assert torch.equal(3 - short, (9 - long)[:, -3:])
