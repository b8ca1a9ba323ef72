"""Nats, counted so that any split into batches, segments and ranks gives the same mean."""

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class MeanNats(Metric):
    """Summed nats over counted tokens, in float64.

    It stays float64 when the module that owns it is made half precision, which would stop
    counting at 256 tokens in bfloat16.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nats", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, nats_BL: Tensor) -> None:
        """Count the nats of some tokens."""
        self.nats += nats_BL.detach().sum(dtype=self.nats.dtype)
        self.count += nats_BL.numel()

    def compute(self) -> Tensor:
        """Mean nats of a token."""
        return self.nats / self.count

    def _apply(self, *args: Any, **kwargs: Any) -> "MeanNats":
        exact = {name: getattr(self, name) for name in self._defaults}
        super()._apply(*args, **kwargs)
        for name, value in exact.items():
            device = getattr(self, name).device
            # Apple's devices have nothing wider than float32.
            dtype = torch.float32 if device.type == "mps" else torch.float64
            setattr(self, name, value.to(device, dtype))
            self._defaults[name] = self._defaults[name].to(device, dtype)
        return self


def readings(nats: float, unit: str) -> dict[str, float]:
    """Mean nats of a token in the field's other units, by name.

    bits = nats / ln 2 and perplexity = exp(nats) of the mean; a mean of perplexities is neither.
    """
    return {
        "nats": nats,
        f"bits_per_{unit}": nats / math.log(2),
        "perplexity": math.exp(min(nats, 700.0)),
    }
