"""Training with LanguageModel under Lightning's Trainer: its speed, and whether it resumes exactly.

Parts of check.py: each yields its findings, and begins nothing after `ends_at`.
"""

import contextlib
import io
import math
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from experiments.gpu.parts import DEVICE, ROOT, Findings, try_in_time
from experiments.gpu.speed import Training, load_published, synchronize
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
RUNS = [("paper/enwik8_base", name) for name in ("bf16-mixed", "compile", "16-mixed")]
RUNS += [("paper/wt103_base", name) for name in ("bf16-mixed", "compile")]
RUNS += [("paper/enwik8_base", name) for name in ("32-true", "fsdp2")]
ON_CPU = ("bf16-mixed", "fsdp2")  # these a CPU has, and needs no minute for
QUIET = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
Weights = dict[str, torch.Tensor]


def train_in_each_way(smoke: bool, ends_at: float) -> Findings:
    """Train in each way that a user may choose; what most users would choose comes first."""
    for config, name in RUNS:
        if DEVICE == "cuda" or name in ON_CPU:
            about = {"config": config, "way": name}
            yield try_in_time(ends_at, about, try_way, config, name, smoke)


def try_way(config: str, name: str, smoke: bool) -> dict[str, Any]:
    training, steps = load_published(config, smoke), 6 if smoke else 60
    with tempfile.TemporaryDirectory() as folder:
        return measure_training(training, Path(folder), steps, **WAYS[name])


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


def measure_training(
    training: Training,
    folder: Path,
    steps: int,
    precision: str,
    compile: bool = False,
    strategy: str = "auto",
) -> dict[str, Any]:
    """Return the speed of some steps on random letters after the first third of them."""
    text, count = folder / "letters.txt", training.batch_size * training.tgt_len
    text.write_bytes(bytes(torch.randint(97, 123, (2 * count * steps,)).tolist()))
    data = CorpusDataModule(
        path=str(text), vocab="bytes", data_dir=str(folder), tgt_len=training.tgt_len,
        batch_size=training.batch_size,
    )  # fmt: skip
    optim = OptimConfig(lr=1e-5, schedule="constant")
    model, clock = LanguageModel(training.config, optim, compile=compile), Clock(steps)
    how = {"precision": precision, "strategy": strategy, "callbacks": [clock]}
    trainer = make_trainer(folder, steps, **how)
    trainer.fit(model, datamodule=data)
    first, third, last = clock.times
    n_step = clock.measured[2] - clock.measured[1]
    return {
        "tokens_per_second": count * n_step / (last - third),
        "seconds_of_first_step": first,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0,
        "right": all(map(math.isfinite, clock.losses)),
    }


def make_trainer(folder: Path, max_steps: int, **settings: Any) -> Trainer:
    return Trainer(
        accelerator="auto", devices=1, max_steps=max_steps, max_epochs=-1, limit_val_batches=0,
        gradient_clip_val=0.25, use_distributed_sampler=False, default_root_dir=folder,
        **dict.fromkeys(QUIET, False), **settings,
    )  # fmt: skip


def resume_twice(smoke: bool, ends_at: float) -> Findings:
    """Train ten steps whole, and as four and six: are all weights the same?"""
    runs = [("matmul", False)] if smoke else [("sdpa", False), ("matmul", False)]
    for kernel, deterministic in [*runs, ("sdpa", True)]:
        row = {"kernel": kernel, "deterministic": deterministic}
        yield try_in_time(ends_at, row, resume, kernel, deterministic)


def resume(kernel: str, deterministic: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = partial(train, kernel, deterministic=deterministic)
        start, _ = run(Path(folder) / "start", 0)
        whole, _ = run(Path(folder) / "whole", 10)
        again, _ = run(Path(folder) / "again", 10)
        _, path = run(Path(folder) / "first", 4)
        resumed, _ = run(Path(folder) / "rest", 10, path)
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
    kernel: str,
    folder: Path,
    max_steps: int,
    ckpt_path: Path | None = None,
    deterministic: bool = False,
) -> tuple[Weights, Path]:
    """Return the weights after some steps on CONTRIBUTING.md, and a checkpoint of them."""
    seed_everything(3, verbose=False)
    net = TransformerXLConfig(
        n_layer=2, n_head=2, d_model=64, mem_len=24, dropout=0.1, kernel=kernel
    )
    optim = OptimConfig(lr=1e-3, schedule="constant")
    model = LanguageModel(net, optim)
    data = CorpusDataModule(
        path=str(ROOT / "CONTRIBUTING.md"), data_dir=str(folder), tgt_len=24, batch_size=4
    )
    precision = "bf16-mixed" if DEVICE == "cuda" else "32-true"
    trainer = make_trainer(folder, max_steps, precision=precision, deterministic=deterministic)
    if max_steps:
        trainer.fit(model, datamodule=data, ckpt_path=ckpt_path)
        trainer.save_checkpoint(folder / "end.ckpt")
    weights = {name: value.cpu().clone() for name, value in model.net.state_dict().items()}
    return weights, folder / "end.ckpt"
