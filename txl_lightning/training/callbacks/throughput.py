"""What happens beside the step: counting, and writing what predict finds."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from ...data.stream import Segment
from ...model.flops import flops_per_token


class Throughput(Callback):
    """Log tokens and model FLOP a second, of all devices, without the time of validation."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self.since: float | None = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Segment, batch_idx: int
    ) -> None:
        """Start the clock, unless it runs."""
        if self.since is None:
            self.since = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Segment,
        batch_idx: int,
    ) -> None:
        """Count; log as seldom as everything else is logged."""
        self.tokens += len(batch.targets_BL) * batch.new_len * trainer.world_size
        if pl_module.is_logged(trainer.global_step, batch_idx):
            self.pause()
            rate = self.tokens / max(self.seconds, 1e-9)
            flops = flops_per_token(pl_module.net, batch.new_len)
            both = {"tokens_per_second": rate, "model_flops_per_second": rate * flops}
            pl_module.log_dict({f"train/{name}": both[name] for name in both})
            self.tokens, self.seconds = 0, 0.0

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self.pause()

    def pause(self) -> None:
        """Stop the clock; the next step starts it again."""
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
        self.since = None


class SaveNats(BasePredictionWriter):
    """Write the nats of every token that predict scores: nats.npy, [B, T] in input order.

    Where one row scores a token and another does not, the other has nan.
    """

    def __init__(self) -> None:
        super().__init__(write_interval="batch_and_epoch")
        self.parts: list[np.ndarray] = []

    def write_on_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, prediction: torch.Tensor, *_: Any
    ) -> None:
        """Keep a segment's nats on the host."""
        self.parts.append(prediction.float().cpu().numpy())

    def write_on_epoch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Join the segments; each rank writes its own rows."""
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        rank = f".rank{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = folder / f"nats{rank}.npy"
        nats_BT = np.concatenate(self.parts, axis=1)
        # The warm-up is no part of the text that is scored.
        np.save(path, nats_BT[:, ~np.isnan(nats_BT).all(axis=0)])
        self.parts = []
        print(f"nats of every scored token: {path}")
