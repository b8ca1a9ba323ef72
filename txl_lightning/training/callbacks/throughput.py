"""Throughput: the speed of a run.

Lightning's ThroughputMonitor waits for the GPU after every batch, and some of its peaks count
sparsity.
"""

import time
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from ...data.stream import Segment
from . import LanguageModel

PEAK_FLOPS = {
    **{"H200 NVL": 836e12, "H200": 989e12, "H100 NVL": 836e12, "H100 PCIe": 756e12},
    **{"H100": 989e12, "A100": 312e12, "L40S": 362e12},
}
"""Dense bfloat16 FLOPs per second, by a part of the device name (NVIDIA's data sheets)."""


class Throughput(Callback):
    """Log tokens and model FLOPs per second of all devices, validations excluded.

    Also logged: train/mfu, the fraction of the devices' bfloat16 peak, where that is known; and
    train/seconds, the time of the whole run, resumed parts and validations included. FLOPs need a
    softmax over the whole vocabulary: with cutoffs, they and mfu are not logged.
    """

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
        rate = self.tokens / max(self.seconds, 1e-9)
        values = {"tokens_per_second": rate}
        count_flops = getattr(module.net.config, "flops_per_token", lambda _: None)
        if (flops_per_token := count_flops(batch.new_len)) is not None:
            values["model_flops_per_second"] = flops = rate * flops_per_token
            if peak := peak_flops(trainer.strategy.root_device):
                values["mfu"] = flops / (peak * trainer.world_size)
        values["seconds"] = module.seconds
        module.log_dict({f"train/{name}": values[name] for name in values})
        self.tokens, self.seconds = 0, 0.0

    def pause(self, *_: Any) -> None:
        if self.started_at is not None:
            self.seconds += time.perf_counter() - self.started_at
        self.started_at = None

    on_validation_start = pause


def peak_flops(device: torch.device) -> float | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
