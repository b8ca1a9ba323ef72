"""The networks that are compared: they differ in the rows of an update, and in their gradient.

Each state attends to SPAN states, itself among them, so that a gradient through the memories of
several segments is that of one long segment (tests/test_measurements.py). An arm is thus how many
rows an update reads, and from where to where in a row the gradient reaches.

D width of the model   F inner width of the feed-forward   V size of the vocabulary
L tokens of a segment   M states in memory   S = M + L
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEPS = 1464
TOKENS = 1024
"""Of an update, in all arms."""
SPAN = 128
N_LAYER = 4
D = 128
F = 4 * D


@dataclass(frozen=True)
class Arm:
    """How a network is trained. Without memory, its segments know nothing of each other."""

    rows: int
    gradient_len: int
    """Tokens of a row from one stop of the gradient to the next: the length of a segment."""
    has_memory: bool = True

    @property
    def segments(self) -> int:
        """Segments of an update, one after the other with equal weights."""
        return TOKENS // (self.rows * self.gradient_len)

    @property
    def mem_len(self) -> int:
        return SPAN if self.has_memory else 0

    @property
    def options(self) -> dict[str, Any]:
        return {
            "data.batch_size": self.rows,
            "data.tgt_len": self.gradient_len,
            "model.net.mem_len": self.mem_len,
            "model.net.same_length": "mem_len" if self.has_memory else None,
            "trainer.accumulate_grad_batches": self.segments,
        }

    @property
    def readings(self) -> dict[str, dict[str, Any]]:
        """Ways to read the test text: all arms with equal span, and segments as they were read."""
        span = {"mem_len": SPAN, "tgt_len": SPAN, "same_length": "mem_len"}
        segments = {"mem_len": 0, "tgt_len": self.gradient_len}
        return {"span": span} | ({} if self.has_memory else {"segments": segments})

    def count_operations(self, n_token: int, computed: bool = False) -> float:
        """Return the multiplications of matrices' elements for a token, forward and backward.

        Scores and distances count where the mask needs them, or all that are computed. A memory
        has no gradient.
        """
        L = self.gradient_len
        S = L + self.mem_len
        scored, distances = (SPAN, SPAN) if self.has_memory else ((L + 1) / 2, L)
        if computed:
            scored = S
            distances = S + 1
        of_queries = 2 * D * D + 2 * D * F
        of_states = 2 * D * D * S / L
        of_distances = D * D * distances / (self.rows * L)
        of_scores = 3 * D * scored
        # Backward: a product for the weights and one for the input, if this has a gradient.
        layer = 3 * (of_queries + of_scores) + of_states * (2 + L / S) + 2 * of_distances
        return N_LAYER * layer + 3 * D * n_token


ARMS = {
    "memory 2x512": Arm(2, 512),
    "memory 2x64": Arm(2, 64),
    "memory 16x64": Arm(16, 64),
    "memory 8x128": Arm(8, 128),
    "memory 8x64": Arm(8, 64),
    "alone 8x128": Arm(8, 128, has_memory=False),
    "memory 2x128": Arm(2, 128),
    "alone 2x512": Arm(2, 512, has_memory=False),
    "alone 16x64": Arm(16, 64, has_memory=False),
}
"""By name: rows x tokens with a gradient. In the order of training."""
REFERENCE = "memory 16x64"
"""The Transformer-XL of the quick start: others get its operations, or its seconds."""
TIMED = {
    "pace": ("memory 2x512", "memory 2x64", "memory 8x128", "memory 8x64", "alone 8x128"),
    "pace of segments of 64": ("alone 16x64",),
}
"""Arms that are trained again with as much work as REFERENCE, by the record of their times.

Those of a record were timed in turn with REFERENCE: first the primary contrasts', later one more.
"""
PACE_OF = {name: record for record, names in TIMED.items() for name in names}
"""The record of an arm's times."""
BUDGETS = ("operations", "seconds")
KINDS = {name: (name, "tokens") for name in ARMS} | {
    f"{name}, equal {budget}": (name, budget) for budget in BUDGETS for name in PACE_OF
}
"""The arm, and what it has as much of as the reference."""
SAME = 0.05
"""Work that differs by a smaller share is equal."""


def match_steps(name: str, work: Mapping[str, float]) -> int:
    """Return the steps of an arm with as much work as the reference, by the work of a step."""
    return round(STEPS * work[REFERENCE] / work[name])


def is_equal(steps: int) -> bool:
    """Return True if an arm needs no other training for a budget than that of equal tokens."""
    return abs(steps / STEPS - 1) <= SAME
