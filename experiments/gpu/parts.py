"""The parts of check.py: each yields what it finds, and begins nothing long after `ends_at`.

B rows   L tokens in the segment
"""

import contextlib
import importlib.util
import io
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from experiments.gpu import correctness
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model.kernels import KERNELS

ROOT = Path(__file__).resolve().parents[2]
RACED = ("triton", "sdpa", "matmul")
"""Kernels that may be fastest on a GPU; the least tried one first."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Largest difference over the largest true value.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2}
PAPER = {
    "enwik8_base": 256, "enwik8_large": 256, "wt103_base": 267_735, "wt103_large": 267_735,
}  # fmt: skip
"""Configs of configs/paper/ and the sizes of their vocabularies."""
NO_TIME = {"left out": "no time was left"}
TINY = {"n_layer": 1, "n_head": 2, "d_model": 8, "d_head": 4, "d_inner": 16, "mem_len": 6}

Findings = Iterator[dict[str, Any]]
Weights = dict[str, torch.Tensor]


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measure_peak(smoke: bool, ends_at: float) -> Findings:
    """Measure what products of large square matrices reach, in operations a second."""
    size, rounds = (256, 3) if smoke else (8192, 30)
    for dtype in (torch.bfloat16, torch.float32):
        a = torch.randn(size, size, device=DEVICE).to(dtype)
        best = min(seconds_of(lambda a=a: a @ a) for _ in range(rounds))
        yield {"dtype": str(dtype), "flops_per_second": 2 * size**3 / best}


def seconds_of(run) -> float:
    synchronize()
    began = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - began


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


def compare_golden(smoke: bool, ends_at: float) -> Findings:
    """Compare with outputs of the original code, float32, to 1e-5 nats."""
    from txl_lightning.convert import load_original

    path = ROOT / "tests" / "convert" / "conftest.py"
    spec = importlib.util.spec_from_file_location("golden", path)
    golden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(golden)
    names = sorted(path.stem for path in (ROOT / "tests/golden/original").glob("*.npz"))
    names = names[:2] if smoke else names
    for kernel in ("reference", "sdpa", "matmul", "triton"):
        wrong = {}
        for name in names:
            file = golden.Golden(f"original/{name}")
            net = load_original(file.weights, file.args).to(DEVICE)
            for layer in net.layers:
                layer.attention.attend = KERNELS[kernel]
            try:
                with torch.no_grad():
                    file.check(net)
            except Exception as error:
                wrong[name] = f"{type(error).__name__}: {error}"[:300]
        yield {"kernel": kernel, "files": len(names), "right": not wrong, "wrong": wrong}


def measure_speed(smoke: bool, ends_at: float) -> Findings:
    """Measure training of the published networks with each kernel: forward, backward, update."""
    [peak, *_] = [found["flops_per_second"] for found in measure_peak(smoke, ends_at)]
    for name, n_token in list(PAPER.items())[: 2 if smoke else None]:
        run = yaml.safe_load((ROOT / f"configs/paper/{name}.yaml").read_text())
        published = TransformerXLConfig(**run["model"]["net"] | {"n_token": n_token})
        tgt_len, batch_size = run["data"]["tgt_len"], run["data"]["batch_size"]
        if smoke:
            small = TINY | {"n_token": 300, "cutoffs": (), "tie_projs": (), "div_val": 1}
            published, tgt_len, batch_size = replace(published, **small), 6, 2
        for kernel in RACED:
            config = replace(published, kernel=kernel)
            about = {"config": name, "kernel": kernel, "tgt_len": tgt_len}
            about["dropatt"] = config.dropatt
            if time.monotonic() > ends_at:
                yield about | NO_TIME
                continue
            try:
                found = race(config, tgt_len, batch_size, 0.2 if smoke else 4.0)
                found["share_of_peak"] = found["flops_per_second"] / peak
            except Exception as error:
                found = {"right": False, "error": f"{type(error).__name__}: {error}"[:300]}
            yield about | found


def race(config: TransformerXLConfig, tgt_len: int, batch_size: int, seconds: float) -> dict:
    """Time steps under bf16 autocast, with fewer rows where memory is short."""
    torch._dynamo.reset()
    while True:
        try:
            return time_steps(config, tgt_len, batch_size, seconds)
        except torch.OutOfMemoryError:
            if batch_size == 1:
                raise
        # Outside of the handler, whose traceback holds what was allocated.
        batch_size = -(-batch_size // 2)
        torch.cuda.empty_cache()


def time_steps(config: TransformerXLConfig, tgt_len: int, batch_size: int, seconds: float) -> dict:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        net = TransformerXL(config).train()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-5, fused=DEVICE == "cuda")
        # Log-uniform ids, as frequent as Zipf says, matter to an adaptive softmax.
        ids = config.n_token ** torch.rand(batch_size, tgt_len + 1)
        ids_BT = ids.long().clamp(max=config.n_token - 1)
    memory, loss = None, None

    def step() -> None:
        nonlocal memory, loss
        with torch.autocast(DEVICE, torch.bfloat16):
            nats_BL, memory = net.loss(ids_BT[:, :-1], ids_BT[:, 1:], memory)
            loss = nats_BL.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()

    # Until the memory is full and everything is compiled.
    for _ in range(2 + -(-config.mem_len // tgt_len)):
        step()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    once = seconds_of(step)
    count = max(int(seconds / once), 3)
    each = seconds_of(lambda: [step() for _ in range(count)]) / count
    rate = batch_size * tgt_len / each
    return {
        "batch_size": batch_size,
        "steps": count,
        "tokens_per_second": rate,
        "flops_per_second": rate * config.flops_per_token(tgt_len),
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0,
        "right": bool(loss.isfinite()),
    }


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
    model = LanguageModel(replace(net, kernel=kernel), optim)
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
