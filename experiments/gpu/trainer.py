"""Training with LanguageModel under Lightning's Trainer: its speed, and whether it resumes exactly.

Parts of check.py: each yields its findings, and begins nothing after `ends_at`.
"""

import math
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from experiments.gpu.parts import DEVICE, ROOT, Findings, try_in_time
from experiments.gpu.speed import BASE, load_published, synchronize
from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig
from txl_lightning.training import ranks  # noqa: F401 (it registers the strategy fsdp2)

WAYS = {
    "bf16-mixed": {"precision": "bf16-mixed"},
    "compile": {"precision": "bf16-mixed", "compile": True},
    "16-mixed": {"precision": "16-mixed"},
    "32-true": {"precision": "32-true"},
    "fsdp2": {"precision": "bf16-mixed", "strategy": "fsdp2"},
}
"""Settings with which a user may train."""
RUNS = [(BASE, name) for name in WAYS]
RUNS += [("paper/wt103_base", name) for name in ("bf16-mixed", "compile")]
ON_CPU = ("bf16-mixed", "fsdp2")  # these a CPU has, and needs no minute for
QUIET = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
Weights = dict[str, torch.Tensor]


def train_in_each_way(smoke: bool, ends_at: float) -> Findings:
    """Train in each way that a user may choose."""
    for config, name in RUNS:
        if DEVICE == "cuda" or name in ON_CPU:
            about = {"config": config, "way": name}
            run = partial(time_training, **WAYS[name])
            yield try_in_time(ends_at, about, run, config, smoke)


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


def time_training(config: str, smoke: bool, compile: bool = False, **settings: Any) -> dict:
    """Return the speed of some steps on random letters after the first third of them."""
    case, steps = load_published(config, smoke), 6 if smoke else 60
    clock = Clock(steps)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "letters.txt"
        text.write_bytes(bytes(torch.randint(97, 123, (2 * case.tokens * steps,)).tolist()))
        sizes = {"tgt_len": case.tgt_len, "batch_size": case.rows}
        data = CorpusDataModule(path=str(text), vocab="bytes", data_dir=folder, **sizes)
        optim = OptimConfig(lr=1e-5, schedule="constant")
        model = LanguageModel(case.config, optim, compile=compile)
        trainer = make_trainer(Path(folder), steps, callbacks=[clock], **settings)
        try:
            trainer.fit(model, datamodule=data)
        finally:
            end_process_group()
    first, third, last = clock.times
    n_step = clock.measured[2] - clock.measured[1]
    return {
        "tokens_per_second": case.tokens * n_step / (last - third),
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


def resume_twice(smoke: bool, ends_at: float) -> Findings:
    """Train ten steps whole, and as four and six: are all weights the same?"""
    runs = [("sdpa", False), ("matmul", False), ("sdpa", True)]
    for kernel, deterministic in runs[smoke:]:
        row = {"kernel": kernel, "deterministic": deterministic}
        yield try_in_time(ends_at, row, resume, kernel, deterministic)


def resume(kernel: str, deterministic: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = partial(train, Path(folder), kernel, deterministic)
        start = run(0)
        whole = run(10)
        again = run(10)
        run(4)
        resumed = run(10, resumes=True)
    return judge_resume(start, whole, again, resumed)


def judge_resume(start: Weights, whole: Weights, again: Weights, resumed: Weights) -> dict:
    """Compare a resumed run with a whole one, and the whole one with its repetition.

    A kernel that adds in another order each time differs from itself; a resumed run may differ ten
    times as much, but not by a generator or a memory that was lost. All have left the start.
    """
    differences = {
        # Not Python's max, which passes over NaN.
        name: torch.stack([(whole[key] - other[key]).abs().max() for key in whole]).max().item()
        for name, other in (("resumed", resumed), ("repeated", again), ("trained", start))
    }
    is_exact = differences["resumed"] <= 10 * differences["repeated"]
    return differences | {"right": is_exact and differences["trained"] > 1e-4}


def train(
    folder: Path, kernel: str, deterministic: bool, max_steps: int, resumes: bool = False
) -> Weights:
    """Return the weights after some steps on CONTRIBUTING.md; `resumes` begins at a checkpoint."""
    seed_everything(3, verbose=False)
    sizes = {"n_layer": 2, "n_head": 2, "d_model": 64, "mem_len": 24, "dropout": 0.1}
    optim = OptimConfig(lr=1e-3, schedule="constant")
    model = LanguageModel(TransformerXLConfig(kernel=kernel, **sizes), optim)
    text = str(ROOT / "CONTRIBUTING.md")
    data = CorpusDataModule(path=text, data_dir=str(folder), tgt_len=24, batch_size=4)
    precision = "bf16-mixed" if DEVICE == "cuda" else "32-true"
    trainer = make_trainer(folder, max_steps, precision=precision, deterministic=deterministic)
    if max_steps:
        end = folder / "end.ckpt"
        trainer.fit(model, datamodule=data, ckpt_path=end if resumes else None)
        trainer.save_checkpoint(end)
    return {name: value.cpu().clone() for name, value in model.net.state_dict().items()}
