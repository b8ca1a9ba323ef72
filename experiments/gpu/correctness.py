"""How far a kernel is from the reference: output and every gradient.

B rows   L queries   M remembered   S = M + L states seen   H heads   K head width   T = S + 1
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from txl_lightning import Memory
from txl_lightning.model.kernels import reference
from txl_lightning.model.positions import DistanceTerms

TERMS = {"r": "r_THK", "u": "u_HK", "v": "v_HK", "b": "b_TH"}


@dataclass(frozen=True)
class Case:
    """Sizes, and which terms distance adds, by the first letters of their names."""

    tgt_len: int
    mem_len: int
    terms: str = "rvu"
    n_head: int = 3
    d_head: int = 4

    def make_inputs(self, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
        """Draw q, k, values and terms for two rows."""
        L, S, H, K = self.tgt_len, self.mem_len + self.tgt_len, self.n_head, self.d_head
        shapes = {"q": (2, L, H, K), "k": (2, S, H, K), "value": (2, S, H, K)}
        by_term = {"r": (S + 1, H, K), "u": (H, K), "v": (H, K), "b": (S + 1, H)}
        shapes |= {name: by_term[name] for name in self.terms}
        draw = torch.Generator().manual_seed(self.tgt_len)
        leaves = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        return {name: leaf.to(device, dtype).requires_grad_() for name, leaf in leaves.items()}

    def make_mask(self, device: str) -> Tensor:
        """Return the mask of rows that remember 0 and 3 states; the second one's text is new."""
        filled_B = torch.tensor([0, 3]).clamp(max=self.mem_len)
        memory = Memory(torch.zeros(1, 2, self.mem_len, 1), filled_B)
        place_L = torch.arange(self.tgt_len)
        since_L = place_L - self.tgt_len // 2
        doc_pos_BL = torch.stack([place_L, since_L.where(since_L >= 0, self.mem_len + place_L)])
        return memory.attention_mask(self.tgt_len, doc_pos_BL).to(device)


def differences(
    attend: Callable[..., Tensor], case: Case, dtype: torch.dtype, device: str = "cpu"
) -> dict[str, float]:
    """Compare with the reference in float64: largest difference over the largest true value."""
    leaves, mask_BLS = case.make_inputs(dtype, device), case.make_mask(device)
    exact = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    weight = torch.linspace(-1, 1, leaves["q"].numel(), device=device).view_as(leaves["q"])
    expected = gradients(reference.attend, exact, mask_BLS, weight.double())
    found = gradients(attend, leaves, mask_BLS, weight.to(dtype))
    return {
        name: ((found[name] - true).abs().max() / true.abs().max()).item()
        for name, true in expected.items()
    }


def gradients(
    attend: Callable[..., Tensor], leaves: dict[str, Tensor], mask_BLS: Tensor, weight: Tensor
) -> dict[str, Tensor]:
    """Return what a kernel computes, and the gradient of each input."""
    terms = DistanceTerms(**{TERMS[name]: leaves[name] for name in TERMS if name in leaves})
    out = attend(leaves["q"], leaves["k"], leaves["value"], terms, mask_BLS, 0.0)
    found = torch.autograd.grad((out * weight).sum(), list(leaves.values()))
    return {"out": out.detach()} | dict(zip(leaves, found, strict=True))
