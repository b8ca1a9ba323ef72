"""Attention by the kernels of flash_kernel.py, with the signature of the package's kernels.

    (b) + (d) = (q + v).r for every distance      one product, here
    the rest                                      flash_kernel.py

Distance t of query l is at column t + l modulo 8, so that the states of each query begin at a
multiple of 8. For this, the keys of distances are there eight times, each moved by one more row.

The backward pass computes scores again, so that nothing of L x S is kept. It is a candidate: by
the rule of README.md, it is measured on a GPU before the package has it.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
G = L / 8, rounded up, groups of queries   W columns: T, the moves, rounded up to MULTIPLE
X = 8 H matrices in a batched product   Y = B G queries of each
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from experiments.gpu import flash_kernel
from experiments.gpu.flash_kernel import Dropped, Rows, Scores, Sizes
from txl_lightning.model.memory import KeysValues, Mask
from txl_lightning.model.parts import refuse_second_derivative
from txl_lightning.model.positions import DistanceTerms

EIGHT = flash_kernel.EIGHT.value
MULTIPLE = 16
"""Triton knows that a stride is a multiple of 8 if it is one of 16."""
LOG2E = math.log2(math.e)


class Tiles(NamedTuple):
    """Queries and states of a tile, and how a GPU computes it."""

    queries: int
    states: int
    warps: int
    stages: int


class Plan(NamedTuple):
    """The tiles of the three kernels."""

    forward: Tiles
    of_queries: Tiles
    of_states: Tiles


PLANS = {
    64: Plan(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 2)),
    128: Plan(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(32, 64, 4, 2)),
}
"""By the largest head width: the largest tiles that need no memory beside registers on sm_90."""
SWEEP = (
    Plan(Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2)),
    Plan(Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2), Tiles(32, 128, 8, 2)),
    Plan(Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 2), Tiles(32, 64, 4, 2)),
    Plan(Tiles(64, 128, 8, 2), Tiles(64, 32, 4, 2), Tiles(64, 128, 8, 2)),
)
"""Others to measure."""
SMALL = Plan(Tiles(64, 32, 8, 1), Tiles(64, 32, 8, 1), Tiles(32, 64, 8, 1))
"""For float32: right, not fast, as no tensor core multiplies it."""


def attend(
    q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    kv_BS2HK = kv if isinstance(kv, Tensor) else torch.stack(kv, dim=2)
    terms = terms.complete(kv_BS2HK.size(1))
    first_BL = find_first(mask.mask_BLS)
    by_distance = (terms.u_HK, terms.v_HK, terms.r_THK, terms.b_TH)
    return Attention.apply(q_BLHK, kv_BS2HK, *by_distance, first_BL, dropatt)


def find_first(mask_BLS: Tensor) -> Tensor:
    """Return the first state that each query sees; it sees all from there to its own."""
    L, S = mask_BLS.shape[1:]
    # The last state of query l is S - L + l.
    after_L = torch.arange(S - L + 1, S + 1, device=mask_BLS.device, dtype=torch.int32)
    return after_L - mask_BLS.sum(-1, dtype=torch.int32)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, first_BL, dropatt = inputs
        q_BLHK, kv_BS2HK, u_HK = tensors[:3]
        (B, L, H, _) = q_BLHK.shape
        # On the device: a captured graph draws another one in each replay.
        seed_1 = torch.randint(1 << 31, (1,), device=q_BLHK.device) if dropatt else None
        launch = Launch(q_BLHK, kv_BS2HK, first_BL, seed_1, dropatt)
        bd_8HBGW = Distances(q_BLHK, *tensors[3:]).score()
        out_BLHK = q_BLHK.new_empty(q_BLHK.shape)
        total_BHL = q_BLHK.new_empty(B, H, L, dtype=torch.float32)
        launch.forward(add(q_BLHK, u_HK), kv_BS2HK, bd_8HBGW, out_BLHK, total_BHL)
        ctx.dropatt = dropatt
        ctx.save_for_backward(*tensors, first_BL, seed_1, out_BLHK, total_BHL)
        return out_BLHK

    @staticmethod
    def backward(ctx: Any, d_out_BLHK: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("flash")
        *tensors, first_BL, seed_1, out_BLHK, total_BHL = ctx.saved_tensors
        q_BLHK, kv_BS2HK, u_HK, v_HK = tensors[:4]
        launch = Launch(q_BLHK, kv_BS2HK, first_BL, seed_1, ctx.dropatt)
        distances = Distances(q_BLHK, *tensors[3:])
        inputs = (add(q_BLHK, u_HK), kv_BS2HK, distances.score())
        of_output = (out_BLHK, total_BHL, d_out_BLHK.contiguous())
        d_query_BLHK, d_kv_BS2HK, d_bd_8HBGW = launch.backward(*inputs, *of_output)
        d_near_BLHK, d_r_THK, d_b_TH = distances.differentiate(d_bd_8HBGW)
        return (
            add(d_query_BLHK, d_near_BLHK),
            d_kv_BS2HK,
            None if u_HK is None else d_query_BLHK.sum((0, 1)),
            None if v_HK is None else d_near_BLHK.sum((0, 1)),
            d_r_THK,
            d_b_TH,
            None,
            None,
        )


def add(x: Tensor, y: Tensor | None) -> Tensor:
    return x if y is None else x + y


class Distances:
    """(b) + (d) over sqrt(K) as one product, and its gradients."""

    def __init__(
        self, q_BLHK: Tensor, v_HK: Tensor | None, r_THK: Tensor | None, b_TH: Tensor | None
    ) -> None:
        (B, L, H, self.width) = q_BLHK.shape
        self.n_query = L
        self.sizes_HBG = (H, B, -(-L // EIGHT))
        self.r_THK = r_THK
        self.b_TH = b_TH
        self.n_column = count_columns(L, 0 if b_TH is None else len(b_TH))
        if r_THK is not None:
            self.n_column = count_columns(L, len(r_THK))
            self.near_XYK = group_queries(add(q_BLHK, v_HK))
            self.r_XWK = self.move(r_THK).flatten(0, 1)

    def score(self) -> Tensor | None:
        """Return the scores in bits, bd_8HBGW; without r, those of all queries are one view."""
        H, B, G = self.sizes_HBG
        scale = self.width**-0.5 * LOG2E
        shape = (EIGHT, H, B, G, self.n_column)
        b_8H11W = None
        if self.b_TH is not None:
            b_8H11W = self.move(self.b_TH[..., None] * scale)[..., 0][:, :, None, None]
        if self.r_THK is None:
            return None if b_8H11W is None else b_8H11W.expand(shape)
        bd_8HBGW = self.near_XYK.new_empty(shape)
        if b_8H11W is not None:
            bd_8HBGW.copy_(b_8H11W)
        bd_XYW = bd_8HBGW.view(EIGHT * H, B * G, -1)
        with_b = 0 if b_8H11W is None else 1
        bd_XYW.baddbmm_(self.near_XYK, self.r_XWK.mT, beta=with_b, alpha=scale)
        return bd_8HBGW

    def differentiate(
        self, d_bd_8HBGW: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients of q + v, d_near_BLHK, of r and of b."""
        d_near_BLHK = d_r_THK = d_b_TH = None
        H, B, G = self.sizes_HBG
        scale = self.width**-0.5
        if self.r_THK is not None:
            d_bd_XYW = d_bd_8HBGW.view(EIGHT * H, B * G, -1)
            d_near_YXK = self.near_XYK.new_empty(B * G, EIGHT * H, self.width)
            d_near_XYK = d_near_YXK.transpose(0, 1)
            d_near_XYK.baddbmm_(d_bd_XYW, self.r_XWK, beta=0, alpha=scale)
            d_near_BLHK = d_near_YXK.view(B, G * EIGHT, H, -1)[:, : self.n_query]
            d_r_XWK = torch.empty_like(self.r_XWK)
            d_r_XWK.baddbmm_(d_bd_XYW.mT, self.near_XYK, beta=0, alpha=scale)
            d_r_THK = self.sum_moved(d_r_XWK.unflatten(0, (EIGHT, H)), len(self.r_THK))
        if self.b_TH is not None:
            d_b_8HW = d_bd_8HBGW.sum((2, 3), dtype=torch.float32) * scale
            d_b_TH1 = self.sum_moved(d_b_8HW[..., None], len(self.b_TH))
            d_b_TH = d_b_TH1[..., 0].to(self.b_TH.dtype)
        return d_near_BLHK, d_r_THK, d_b_TH

    def move(self, x_THK: Tensor) -> Tensor:
        """Return x_8HWK, where row t is at column t + i for the i-th of eight queries."""
        x_8HWK = x_THK.new_zeros(EIGHT, x_THK.size(1), self.n_column, x_THK.size(2))
        self.view_moved(x_8HWK, len(x_THK)).copy_(x_THK.transpose(0, 1))
        return x_8HWK

    def sum_moved(self, x_8HWK: Tensor, n_distance: int) -> Tensor:
        """Return x_THK, the sum over the eight queries."""
        return self.view_moved(x_8HWK, n_distance).sum(0).transpose(0, 1)

    def view_moved(self, x_8HWK: Tensor, n_distance: int) -> Tensor:
        """Return a view x_8HTK of what was moved."""
        _, H, W, K = x_8HWK.shape
        # Groups end with the last query: the first group may lack some.
        n_lacking = -self.n_query % EIGHT
        strides = (H * W * K + K, W * K, K, 1)
        return x_8HWK.as_strided((EIGHT, H, n_distance, K), strides, n_lacking * K)


def count_columns(n_query: int, n_distance: int) -> int:
    """Return W."""
    n_moved = n_distance + EIGHT - 1 + -n_query % EIGHT
    return n_moved + -n_moved % MULTIPLE


def group_queries(x_BLHK: Tensor) -> Tensor:
    """Return a view x_XYK by the place in a group, and head; zeros are appended to the last."""
    n_lacking = -x_BLHK.size(1) % EIGHT
    if n_lacking:
        x_BLHK = F.pad(x_BLHK, (0, 0, 0, 0, 0, n_lacking))
    (B, L, H, K) = x_BLHK.shape
    return x_BLHK.reshape(B * L // EIGHT, EIGHT * H, K).transpose(0, 1)


class Launch:
    """The kernels for inputs of these sizes."""

    def __init__(
        self,
        q_BLHK: Tensor,
        kv_BS2HK: Tensor,
        first_BL: Tensor,
        seed_1: Tensor | None,
        dropatt: float,
    ) -> None:
        self.first_BL = first_BL
        self.dropped = None
        if seed_1 is not None:
            self.dropped = Dropped(seed_1, round(dropatt * (1 << 31)), 1 / (1 - dropatt))
        (B, L, H, K) = q_BLHK.shape
        S = kv_BS2HK.size(1)
        self.n_program = B * H
        self.sizes = Sizes(L, S, H, count_columns(L, S + 1))
        self.width = K
        self.scale = K**-0.5 * LOG2E
        self.plan = next(plan for width, plan in PLANS.items() if width >= K)
        self.precision = "tf32"
        if q_BLHK.dtype == torch.float32:
            self.plan = SMALL
            # Tensor cores would round float32 to 11 bits.
            self.precision = "ieee"

    def forward(
        self,
        query_BLHK: Tensor,
        kv_BS2HK: Tensor,
        bd_8HBGW: Tensor | None,
        out_BLHK: Tensor,
        total_BHL: Tensor,
    ) -> None:
        """Write the output, and the logarithm of the sum of exponentials in bits."""
        tiles = self.plan.forward
        n_tile = triton.cdiv(self.sizes.n_query, tiles.queries)
        inputs = self.describe(query_BLHK, kv_BS2HK, bd_8HBGW)
        run = self.start(flash_kernel.attend_queries, n_tile, tiles)
        run(*inputs, Rows(out_BLHK, *out_BLHK.stride()[:3]), total_BHL)

    def backward(
        self,
        query_BLHK: Tensor,
        kv_BS2HK: Tensor,
        bd_8HBGW: Tensor | None,
        out_BLHK: Tensor,
        total_BHL: Tensor,
        d_out_BLHK: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of q + u, of keys and values, and of (b) + (d) in nats."""
        d_query_BLHK = torch.empty_like(query_BLHK)
        d_kv_BS2HK = torch.empty_like(kv_BS2HK)
        d_bd_8HBGW = None if bd_8HBGW is None else bd_8HBGW.new_empty(bd_8HBGW.shape)
        delta_BHL = torch.empty_like(total_BHL)
        inputs = self.describe(query_BLHK, kv_BS2HK, bd_8HBGW)
        out, d_out, d_query, d_key, d_value = (
            Rows(x_BXHK, *x_BXHK.stride()[:3])
            for x_BXHK in (out_BLHK, d_out_BLHK, d_query_BLHK, *d_kv_BS2HK.unbind(2))
        )
        tiles = self.plan.of_queries
        n_tile = triton.cdiv(self.sizes.n_query, tiles.queries)
        run = self.start(flash_kernel.differentiate_queries, n_tile, tiles)
        run(*inputs, out, total_BHL, d_out, d_query, describe_scores(d_bd_8HBGW), delta_BHL)
        tiles = self.plan.of_states
        n_tile = triton.cdiv(self.sizes.n_state, tiles.states)
        run = self.start(flash_kernel.differentiate_states, n_tile, tiles)
        run(*inputs, total_BHL, d_out, delta_BHL, d_key, d_value)
        return d_query_BLHK, d_kv_BS2HK, d_bd_8HBGW

    def describe(
        self, query_BLHK: Tensor, kv_BS2HK: Tensor, bd_8HBGW: Tensor | None
    ) -> tuple[Any, ...]:
        """Return the first arguments of each kernel."""
        parts = (query_BLHK, *kv_BS2HK.unbind(2))
        rows = (Rows(x_BXHK, *x_BXHK.stride()[:3]) for x_BXHK in parts)
        return *rows, describe_scores(bd_8HBGW), self.first_BL, self.dropped

    def start(self, kernel: Any, n_tile: int, tiles: Tiles) -> Callable[..., None]:
        """Return a function that starts a kernel for each tile of each row and head."""
        padded = max(triton.next_power_of_2(self.width), 16)
        options = {"K": self.width, "P": padded, "QUERIES": tiles.queries}
        options |= {"STATES": tiles.states, "PRECISION": self.precision}
        options |= {"num_warps": tiles.warps, "num_stages": tiles.stages}
        grid = (n_tile, self.n_program)
        return lambda *inputs: run(kernel, grid, *inputs, self.sizes, self.scale, **options)


def run(kernel: Any, grid: tuple[int, int], *inputs: Any, **options: Any) -> None:
    """Start a kernel; flash_offline.py compiles it instead."""
    kernel[grid](*inputs, **options)


def describe_scores(bd_8HBGW: Tensor | None) -> Scores | None:
    if bd_8HBGW is None:
        return None
    assert bd_8HBGW.numel() < 1 << 31, "offsets have 32 bits"
    return Scores(bd_8HBGW, *bd_8HBGW.stride()[:4])
