"""Is it right? Parts of check.py: each yields its findings, and begins nothing after `ends_at`."""

import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.gpu import correctness
from experiments.gpu.candidates import KERNELS, use_kernel
from txl_lightning import TransformerXLConfig

ROOT = Path(__file__).resolve().parents[2]
RACED = ("triton", "sdpa", "matmul")
"""Kernels that may be fastest on a GPU; the least tried one first."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Largest difference over the largest true value.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2}
NO_TIME = {"left out": "no time was left"}

Findings = Iterator[dict[str, Any]]
Weights = dict[str, torch.Tensor]


def compare_kernels(kernel: str, smoke: bool, ends_at: float) -> Findings:
    """Compare output and gradients of a kernel with the reference's, in both precisions."""
    cases = correctness.SMALL[2:] if DEVICE == "cpu" else correctness.ON_GPU
    for dtype in TOLERANCES:
        row = {"kernel": kernel, "dtype": str(dtype)}
        for case, found in correctness.kernel_differences(KERNELS[kernel], dtype, DEVICE, cases):
            right = is_right(found, dtype)
            shown = {"largest": max(found.values())} if right else {"found": found}
            yield row | {"case": case, "right": right} | shown
            if time.monotonic() > ends_at:
                yield row | NO_TIME
                return


def is_right(found: dict[str, float] | str, dtype: torch.dtype) -> bool:
    """Return True if a kernel's differences are within the precision, and it raised no error."""
    return not isinstance(found, str) and correctness.is_within(found, TOLERANCES[dtype])


def resume_twice(smoke: bool, ends_at: float) -> Findings:
    """Train ten steps whole, and as four and six, with each kernel: are all weights the same?"""
    runs = [(kernel, False) for kernel in (["matmul"] if smoke else RACED)] + [("sdpa", True)]
    for kernel, deterministic in runs:
        row = {"kernel": kernel, "deterministic": deterministic}
        if time.monotonic() > ends_at:
            yield row | NO_TIME
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            run = partial(train, kernel, deterministic=deterministic)
            whole, _ = run(Path(folder) / "whole", 10)
            again, _ = run(Path(folder) / "again", 10)
            _, path = run(Path(folder) / "first", 4)
            resumed, _ = run(Path(folder) / "rest", 10, path)
        yield row | judge_resume(whole, again, resumed)


def judge_resume(whole: Weights, again: Weights, resumed: Weights) -> dict[str, Any]:
    """Compare a resumed run with a whole one, and the whole one with its repetition.

    A kernel that adds in another order each time differs from itself; a resumed run may differ ten
    times as much, but not by a generator or a memory that was lost.
    """
    differences = {
        # Not Python's max, which passes over NaN.
        name: torch.stack([(whole[key] - other[key]).abs().max() for key in whole]).max().item()
        for name, other in (("resumed", resumed), ("repeated", again))
    }
    return differences | {"right": differences["resumed"] <= 10 * differences["repeated"]}


def train(
    kernel: str,
    folder: Path,
    max_steps: int,
    ckpt_path: Path | None = None,
    deterministic: bool = False,
) -> tuple[Weights, Path]:
    """Return the weights after some steps on CONTRIBUTING.md, and a checkpoint of them."""
    from lightning.pytorch import Trainer, seed_everything

    from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig

    seed_everything(3, verbose=False)
    net = TransformerXLConfig(n_layer=2, n_head=2, d_model=64, mem_len=24, dropout=0.1)
    optim = OptimConfig(lr=1e-3, schedule="constant")
    model = LanguageModel(net, optim)
    use_kernel(model.net, kernel)
    data = CorpusDataModule(
        path=str(ROOT / "CONTRIBUTING.md"), data_dir=str(folder), tgt_len=24, batch_size=4
    )
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    precision = "bf16-mixed" if DEVICE == "cuda" else "32-true"
    trainer = Trainer(
        accelerator="auto", devices=1, precision=precision, max_steps=max_steps, max_epochs=-1,
        limit_val_batches=0, gradient_clip_val=0.25, use_distributed_sampler=False,
        deterministic=deterministic,
        default_root_dir=folder, **dict.fromkeys(quiet, False),
    )  # fmt: skip
    trainer.fit(model, datamodule=data, ckpt_path=ckpt_path)
    path = folder / "end.ckpt"
    trainer.save_checkpoint(path)
    return {name: value.cpu() for name, value in model.net.state_dict().items()}, path


def run_gpu_tests(smoke: bool, ends_at: float) -> Findings:
    """Run pytest -m gpu, as far as the time goes."""
    import docstring_parser  # noqa: F401 (what the tests need beside lightning)
    import jsonargparse  # noqa: F401
    import pytest

    class Count:
        """Outcomes of tests, and the first line of what went wrong."""

        def __init__(self) -> None:
            self.outcomes, self.wrong = {}, {}

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                self.outcomes[report.outcome] = self.outcomes.get(report.outcome, 0) + 1
            if report.outcome == "failed":
                self.wrong[report.nodeid] = report.longreprtext.splitlines()[-1][:300]

    count, limit = Count(), str(ends_at - time.monotonic())
    code = pytest.main(
        ["-q", "-m", "gpu", str(ROOT / "tests"), "--time-limit", limit], plugins=[count]
    )
    found = {"exit_code": int(code), "outcomes": count.outcomes, "wrong": count.wrong}
    # 5: without a GPU, there are none.
    right = not count.wrong and int(code) in ((0, 5) if smoke else (0,))
    left_out = NO_TIME if count.outcomes.get("skipped") and time.monotonic() > ends_at else {}
    yield found | {"right": right} | left_out
