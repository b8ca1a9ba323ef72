"""How far is a kernel from the reference: output and every gradient?

A difference is the largest over the largest true value. The reference is computed on the CPU in
float64, so that a device that computes nothing is not compared with itself.

B rows   L queries   M remembered   S = M + L states seen   H heads   K head width   T = S + 1
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, einsum

from txl_lightning import Memory
from txl_lightning.model.config import SameLength
from txl_lightning.model.kernels import reference
from txl_lightning.model.memory import Mask
from txl_lightning.model.positions import DistanceTerms

Attend = Callable[..., Tensor]
TERMS = {"r": "r_THK", "u": "u_HK", "v": "v_HK", "b": "b_TH"}
DROPATT = 0.4


@dataclass(frozen=True)
class Case:
    """Sizes, which terms distance adds, by the first letters of their names, and precision.

    Under autocast, u and v stay in float32, as in training.
    """

    tgt_len: int
    mem_len: int
    terms: str = "rvub"
    d_head: int = 4
    same_length: SameLength = None
    autocast: bool = False

    def make_inputs(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Draw q, k, values and terms for four rows and three heads, on the CPU."""
        L = self.tgt_len
        S = self.mem_len + self.tgt_len
        H = 3
        K = self.d_head
        shapes = {"q": (4, L, H, K), "k": (4, S, H, K), "value": (4, S, H, K)}
        by_term = {"r": (S + 1, H, K), "u": (H, K), "v": (H, K), "b": (S + 1, H)}
        shapes |= {name: by_term[name] for name in self.terms}
        draw = torch.Generator().manual_seed(self.tgt_len)
        leaves = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        wide = ("u", "v") if self.autocast else ()
        kinds = {name: torch.float32 if name in wide else dtype for name in leaves}
        return {name: x.to(kinds[name]) for name, x in leaves.items()}

    def make_mask(self) -> Tensor:
        """Return the mask of a full, a half-full, an empty memory, and of a text that begins."""
        M = self.mem_len
        place_L = torch.arange(self.tgt_len)
        filled_B = torch.tensor([M, M // 2, 0, min(M, 3)])
        memory = Memory(torch.zeros(1, 4, M, 1), filled_B, same_length=self.same_length)
        since_L = place_L - self.tgt_len // 2
        begins_L = since_L.where(since_L >= 0, M + place_L)
        doc_pos_BL = torch.stack([M + place_L] * 3 + [begins_L])
        return memory.attention_mask(self.tgt_len, doc_pos_BL)


SMALL = [Case(*size) for size in ((1, 0), (1, 5), (63, 7), (5, 64), (8, 8))]
SMALL += [Case(5, 7, terms) for terms in ("rvu", "r", "ub", "")]
SMALL += [Case(7, 12, same_length="mem_len"), Case(1, 40, "rvu"), Case(9, 9, autocast=True)]
ON_GPU = [Case(63, 7, "rvub", 16), Case(1, 40, "rvu", 16), Case(64, 64, "rvub", 16)]
ON_GPU += [Case(70, 100, "rvu", 64, "mem_len+1"), Case(96, 160, "rvu", 64, autocast=True)]
ON_GPU += [Case(5, 90, "", 32), Case(150, 150, "rvu", 41), Case(200, 333, "rvu", 64)]
ON_GPU += [Case(65, 190, "rub", 128)]
DROPPED = Case(40, 24, "rvu", 64)
"""As many states as a head is wide, so that one-hot values read the weights."""


def compute(
    attend: Attend, leaves: dict[str, Tensor], mask_BLS: Tensor, dropatt: float = 0.0
) -> Tensor:
    terms = DistanceTerms(**{TERMS[name]: leaves[name] for name in TERMS if name in leaves})
    kv_BS2HK = torch.stack([leaves["k"], leaves["value"]], dim=2)
    # As RelativeAttention gives them: under autocast, u and v have higher precision.
    terms = terms.to(leaves["q"].dtype)
    return attend(leaves["q"], kv_BS2HK, terms, Mask(mask_BLS), dropatt)


def with_gradients(out_BLHK: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what was computed, and the gradient of each input for one of the output."""
    weight_BLHK = torch.linspace(-1, 1, out_BLHK.numel()).view_as(out_BLHK).to(out_BLHK)
    gradients = torch.autograd.grad(out_BLHK, list(leaves.values()), weight_BLHK)
    return {"out": out_BLHK.detach()} | dict(zip(leaves, gradients, strict=True))


def compare(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest difference of each over the largest true value, or over 1 if that is 0.

    Of queries that see one state alone, the true gradients of all but the values are 0.
    """
    assert expected["out"].abs().max() > 0.1, "the reference computes nothing"
    errors = {}
    for name, true in expected.items():
        largest = true.abs().max()
        scale = largest.where(largest > 1e-9, torch.ones_like(largest))
        errors[name] = ((found[name].cpu() - true).abs().max() / scale).item()
    return errors


def make_leaves(inputs: dict[str, Tensor], to: torch.dtype | str) -> dict[str, Tensor]:
    """Return inputs in a precision or on a device, as leaves that have gradients."""
    return {name: each.detach().to(to).requires_grad_() for name, each in inputs.items()}


def differences(attend: Attend, case: Case, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Compare with the reference in float64 on the CPU."""
    inputs = case.make_inputs(dtype)
    mask_BLS = case.make_mask()
    exact = make_leaves(inputs, torch.float64)
    expected = with_gradients(compute(reference.attend, exact, mask_BLS), exact)
    leaves = make_leaves(inputs, device)
    with torch.autocast(device, dtype, enabled=case.autocast and dtype.itemsize == 2):
        out_BLHK = compute(attend, leaves, mask_BLS.to(device))
    return compare(with_gradients(out_BLHK, leaves), expected)


def differences_when_dropped(attend: Attend, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Compare with the reference whose weights are dropped by hand where the kernel drops them."""
    inputs = DROPPED.make_inputs(dtype)
    mask_BLS = DROPPED.make_mask()
    one_hot = torch.eye(DROPPED.d_head, dtype=dtype)[None, :, None].expand_as(inputs["value"])
    leaves, reading = (make_leaves(x, device) for x in (inputs, inputs | {"value": one_hot}))
    torch.manual_seed(1)
    is_kept_BLHS = (compute(attend, reading, mask_BLS.to(device), DROPATT) > 0).cpu()
    exact = make_leaves(inputs, torch.float64)
    weight_BLHS = compute(reference.attend, exact | {"value": one_hot.double()}, mask_BLS)
    kept_BLHS = weight_BLHS * is_kept_BLHS / (1 - DROPATT)
    out_BLHK = einsum("blhs,bshk->blhk", kept_BLHS, exact["value"])
    torch.manual_seed(1)
    found = with_gradients(compute(attend, leaves, mask_BLS.to(device), DROPATT), leaves)
    share = (is_kept_BLHS.sum() / (weight_BLHS > 1e-6).sum()).item()
    assert abs(share - 1 + DROPATT) < 0.02, f"{share} of the weights are kept"
    return compare(found, with_gradients(out_BLHK, exact))


def kernel_differences(
    attend: Attend, dtype: torch.dtype, device: str, cases: Iterable[Case]
) -> Iterator[tuple[str, dict[str, float] | str]]:
    """Yield the differences of a kernel in each case and with dropout, or the error of the case."""
    runs = {str(case): partial(differences, attend, case) for case in cases}
    runs["dropped"] = partial(differences_when_dropped, attend)
    for case, run in runs.items():
        try:
            yield case, run(dtype, device)
        # A kernel that is wrong for a case fails by errors of any class, a compiler's among them.
        except Exception as error:
            yield case, f"{type(error).__name__}: {error}"[:500]
