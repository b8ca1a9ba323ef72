"""Throughput: the speed of a run; Lightning's ThroughputMonitor waits for the GPU every batch."""

import time
from typing import Any

from lightning.pytorch import Callback, Trainer

from ...data.stream import Segment
from . import LanguageModel


class Throughput(Callback):
    """Log tokens per second of all devices, validations excluded, and train/seconds: the time of
    the whole run, resumed parts and validations included."""

    def __init__(self) -> None:
        self.tokens, self.seconds = 0, 0.0
        self.started_at: float | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        if self.started_at is None:
            self.started_at = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, module: LanguageModel, _: Any, batch: Segment, batch_idx: int
    ) -> None:
        self.tokens += len(batch.targets_BL) * batch.new_len * trainer.world_size
        if not module.is_logged(trainer.global_step, batch_idx):
            return
        self.pause()
        module.log("train/tokens_per_second", self.tokens / max(self.seconds, 1e-9))
        module.log("train/seconds", module.seconds)
        self.tokens, self.seconds = 0, 0.0

    def pause(self, *_: Any) -> None:
        if self.started_at is not None:
            self.seconds += time.perf_counter() - self.started_at
        self.started_at = None

    on_validation_start = pause
