"""Metrics whose result does not depend on the split into batches, segments and ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ..data.stream import IGNORED
from ..model import accumulator_dtype


class MeanNats(Metric):
    """Summed nats over counted tokens, in float64."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        for name in ("nats", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, nats_BL: Tensor, targets_BL: Tensor) -> None:
        nats_BL, scored_BL = nats_BL.detach(), targets_BL != IGNORED
        self.nats += nats_BL.masked_fill(~scored_BL, 0.0).sum(dtype=self.nats.dtype)
        self.count += scored_BL.sum()

    def compute(self) -> Tensor:
        return self.nats / self.count

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> "MeanNats":
        # Private: torchmetrics has no setting that keeps a state's precision.
        def move(value: Tensor) -> Tensor:
            # In bfloat16, to which the module may be cast, the count would stop at 256 tokens.
            device = fn(value).device
            return value.to(device, accumulator_dtype(device))

        return super()._apply(move, *args)


class RightAnswers(Metric):
    """Accuracy of a task: per token, and per answer at the end of each example."""

    full_state_update = False

    def __init__(self, example_len: int) -> None:
        super().__init__()
        self.example_len = example_len
        for name in ("right_tokens", "tokens", "right_answers", "answers"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self.wrong_B: Tensor | None = None

    def update(self, right_BL: Tensor, targets_BL: Tensor, doc_pos_BL: Tensor) -> None:
        """Count the next segment; an answer may span two segments."""
        scored_BL = targets_BL != IGNORED
        wrong_B = torch.zeros_like(right_BL[:, 0]) if self.wrong_B is None else self.wrong_B
        # The last token of an example is an answer; in the warm-up it is not scored.
        ends_BL = (doc_pos_BL + 2 == self.example_len) & scored_BL
        for wrong_token_B, ends_B in zip((scored_BL & ~right_BL).t(), ends_BL.t(), strict=True):
            wrong_B = wrong_B | wrong_token_B
            self.answers += ends_B.sum()
            self.right_answers += (ends_B & ~wrong_B).sum()
            wrong_B = wrong_B & ~ends_B
        self.wrong_B = wrong_B
        self.tokens += scored_BL.sum()
        self.right_tokens += (right_BL & scored_BL).sum()

    def compute(self) -> dict[str, Tensor]:
        """Return accuracies from 0 to 1."""
        answers = {"answer_accuracy": self.right_answers / self.answers}
        return {"token_accuracy": self.right_tokens / self.tokens} | answers
