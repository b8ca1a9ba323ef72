"""environment: versions, device, kernels and paths for a bug report."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ..data.sources import DataConfig
from ..files import PACKAGE, find_configs_folder
from ..machine import describe_environment
from ..model import has_bfloat16_units
from ..model.kernels import REASONS, choose_kernel
from ..process import describe_waiting
from .inputs import pick_device

PACKAGES = """torch lightning torchmetrics jsonargparse numpy safetensors tokenizers wandb optuna
    triton"""
VARIABLES = "TXL_ OMP_ GOMP_ KMP_ MKL_ CUDA_ NCCL_ SLURM_JOB_ID TORCHELASTIC_ WANDB_MODE"
"""Beginnings of the names of environment variables that affect results."""


def environment_command() -> None:
    """Print versions, device, kernels and paths for a bug report, as a table in Markdown."""
    device = torch.device(pick_device(None))
    environment = describe_environment(device)
    machine = environment["machine"]
    rows = {"txl-lightning": f"{environment['release']}, commit {environment['commit']}"}
    rows |= {"system": platform.platform(), "python": f"{machine['python']}, {sys.executable}"}
    for name in PACKAGES.split():
        try:
            rows[name] = version(name)
        except PackageNotFoundError:
            rows[name] = "not installed"
    rows["torch"] = torch.__version__  # with its build, as 2.13.0+cpu
    rows |= {"device": machine["device"], "cpu": f"{machine['cpu']}, {os.cpu_count()} cores"}
    rows["threads"] = f"{machine['threads']}, load {machine['load']:.1f}"
    rows["waiting threads"] = describe_waiting()
    kernel = choose_kernel(device)
    rows["kernel"] = f"{kernel}: {REASONS[kernel]}"
    rows["bfloat16"] = "faster" if has_bfloat16_units(device) else "not faster"
    paths = {"package": PACKAGE, "configs": find_configs_folder(), "data": DataConfig().data_folder}
    rows |= {name: str(path.absolute()) for name, path in (paths | {"here": Path()}).items()}
    prefixes = tuple(VARIABLES.split())
    rows |= {name: os.environ[name] for name in sorted(os.environ) if name.startswith(prefixes)}
    print("| | |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")
