"""Masks and tiles of kernels that compute the scores of a few heads and rows at a time.

B rows   L queries   S visible states   H heads   K head width   X masked states of a part
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

TILE_SCORES = {"cpu": 1 << 19, "elsewhere": 1 << 24}
"""Scores computed at once; on a CPU, as many as fit in the caches of a few cores."""


class Mask:
    """States that each query attends to, as numbers added to scores.

    Args:
        mask_BLS: True where query l attends to state s.
        dtype: precision of the scores.
        ranges: start and stop of ranges of states; every query attends to all states outside of
            them. None: no such states are known.
    """

    def __init__(
        self, mask_BLS: Tensor, dtype: torch.dtype, ranges: Sequence[tuple[int, int]] | None = None
    ) -> None:
        self.mask_BLS, self.has_ranges, self.parts = mask_BLS, ranges is not None, []
        for start, stop in [(0, mask_BLS.size(-1))] if ranges is None else ranges:
            if start < stop:
                added_BLX = torch.where(mask_BLS[..., start:stop], 0.0, -math.inf)
                self.parts.append((start, added_BLX.to(dtype)))

    def hide_(self, score_HBLS: Tensor, rows: slice) -> None:
        """Set masked scores of some rows to -inf."""
        for start, added_BLX in self.parts:
            score_HBLS.narrow(-1, start, added_BLX.size(-1)).add_(added_BLX[rows])


def tiles(
    q_HBLK: Tensor, n_state: int, n_score: int | None = None
) -> Iterator[tuple[slice, slice]]:
    """Yield heads and rows computed at once: all rows of some heads, or some rows of one head.

    A tile has one matrix for every core, and about TILE_SCORES scores.
    """
    H, B, L, _ = q_HBLK.shape
    if not B * L:
        return
    n_core = torch.get_num_threads()
    n_score = n_score or TILE_SCORES.get(q_HBLK.device.type, TILE_SCORES["elsewhere"])
    n_matrix = max(n_score // (L * n_state) // n_core, 1) * n_core
    n_head, n_row = max(n_matrix // B, 1), min(n_matrix, B)
    for head in range(0, H, n_head):
        for row in range(0, B, n_row):
            yield slice(head, head + n_head), slice(row, row + n_row)
