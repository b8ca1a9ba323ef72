"""The speed of training with LanguageModel under Lightning's Trainer.

Parts of check.py: each yields its findings, and begins nothing after `ends_at`.
"""

import gc
import math
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from experiments.gpu import operations
from experiments.gpu.ids import draw_words
from experiments.gpu.parts import DEVICE, Findings, try_in_time
from experiments.gpu.speed import BASE, load_published, synchronize
from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig
from txl_lightning.data.id_files import IdOptions
from txl_lightning.training import ranks  # noqa: F401 (it registers the strategy fsdp2)

WAYS = {
    "bf16-mixed": {"precision": "bf16-mixed"},
    "compile": {"precision": "bf16-mixed", "compile": True},
    "graphs": {"precision": "bf16-mixed", "cuda_graph": True},
    "graphs, compiled": {"precision": "bf16-mixed", "cuda_graph": True, "compile": True},
    "16-mixed": {"precision": "16-mixed"},
    "32-true": {"precision": "32-true"},
    "fsdp2": {"precision": "bf16-mixed", "strategy": "fsdp2"},
}
"""Settings with which a user may train."""
RUNS = [(BASE, name) for name in WAYS]
RUNS += [("paper/wt103_base", name) for name in list(WAYS)[:4]]
OTHER_RUNS = [
    (config, name)
    for config in ("nvidia/wt103_base", "paper/enwik8_large")
    for name in ("graphs", "bf16-mixed", "graphs, compiled")
]
OPTIMIZERS = {"nvidia/wt103_base": "lamb"}
MOST_TOKENS = 1_000_000  # of a training
ON_CPU = ("bf16-mixed", "fsdp2")  # these a CPU has, and needs no minute for
QUIET = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")


def train_in_each_way(
    smoke: bool, ends_at: float, runs: Sequence[tuple[str, str]] = RUNS
) -> Findings:
    """Train in each way that a user may choose."""
    for config, name in runs:
        if DEVICE == "cuda" or name in ON_CPU:
            about = {"config": config, "way": name}
            run = partial(time_training, **WAYS[name])
            yield try_in_time(ends_at, about, run, config, smoke)


def train_others(smoke: bool, ends_at: float) -> Findings:
    """Train the published networks that take longer."""
    yield from train_in_each_way(smoke, ends_at, OTHER_RUNS)


class Clock(Callback):
    """The times and losses of the first step, of the step after a third, and of the last one."""

    def __init__(self, steps: int) -> None:
        self.measured = (0, steps // 3, steps - 1)
        self.times: list[float] = []
        self.losses: list[float] = []

    def on_train_start(self, *_: Any) -> None:
        synchronize()
        self.began = time.perf_counter()

    def on_train_batch_end(self, *inputs: Any) -> None:
        if inputs[-1] in self.measured:
            synchronize()
            self.times.append(time.perf_counter() - self.began)
            self.losses.append(inputs[2]["loss"].item())


def time_training(
    config: str, smoke: bool, compile: bool = False, cuda_graph: bool = False, **settings: Any
) -> dict:
    """Return the speed of some steps on random ids after the first third of them."""
    case = load_published(config, smoke)
    steps = 6 if smoke else min(60, MOST_TOKENS // case.tokens)
    clock = Clock(steps)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ids.npy"
        np.save(file, draw_words(case.config.n_token, (2 * case.tokens * steps,)).numpy())
        sizes = {"tgt_len": case.tgt_len, "batch_size": case.rows}
        options = IdOptions(n_token=case.config.n_token)
        data = CorpusDataModule(ids=str(file), id_options=options, data_dir=folder, **sizes)
        optim = OptimConfig(OPTIMIZERS.get(config, "adamw"), lr=1e-5, schedule="constant")
        model = LanguageModel(case.config, optim, compile=compile, cuda_graph=cuda_graph)
        trainer = make_trainer(Path(folder), steps, callbacks=[clock], **settings)
        # A trainer and its model refer to each other, so that the last ones may still be there.
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            trainer.fit(model, datamodule=data)
        finally:
            end_process_group()
    first, third, last = clock.times
    n_step = clock.measured[2] - clock.measured[1]
    tokens_per_second = case.tokens * n_step / (last - third)
    return {
        "tokens_per_second": tokens_per_second,
        "share_of_peak": operations.share_of_peak(case, tokens_per_second),
        "seconds_of_first_step": first,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0,
        "right": all(map(math.isfinite, clock.losses)),
    }


def end_process_group() -> None:
    """Lightning leaves the group of fsdp2, in which the next training of this process would run."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def make_trainer(folder: Path, max_steps: int, **settings: Any) -> Trainer:
    return Trainer(
        accelerator="auto", devices=1, max_steps=max_steps, max_epochs=-1, limit_val_batches=0,
        gradient_clip_val=0.25, use_distributed_sampler=False, default_root_dir=folder,
        **dict.fromkeys(QUIET, False), **settings,
    )  # fmt: skip
