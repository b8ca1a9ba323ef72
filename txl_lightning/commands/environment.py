"""environment: what a report of a bug needs to say."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ..data.config import DataConfig
from ..evaluation.environment import describe_environment
from ..files import PACKAGE, configs_folder
from ..model.kernels import CUDA_KERNELS, REASONS, choose_kernel
from .inputs import pick_device

PACKAGES = """torch lightning torchmetrics jsonargparse numpy safetensors tokenizers wandb optuna
    triton"""
VARIABLES = "TXL_ OMP_ MKL_ CUDA_ NCCL_ SLURM_JOB_ID TORCHELASTIC_ WANDB_MODE"
"""Environment variables that change what is computed, by how their names begin."""


def environment_command() -> None:
    """Print what a report of a bug needs, as Markdown: versions, device, kernels, paths."""
    device = torch.device(pick_device(None))
    about = describe_environment(device)
    machine = about.pop("machine")
    rows = {"txl-lightning": f"{about['release']}, commit {about['commit']}"}
    rows |= {"system": platform.platform(), "python": f"{machine['python']}, {sys.executable}"}
    rows |= {name: find_version(name) for name in PACKAGES.split()}
    rows |= {"device": machine["device"], "cpu": f"{machine['cpu']}, {os.cpu_count()} cores"}
    rows["threads"] = f"{machine['threads']}, load {machine['load']:.1f}"
    for dtype in (torch.float32, torch.bfloat16):
        kernel = choose_kernel(device, dtype)
        rows[f"kernel, {str(dtype)[6:]}"] = f"{kernel}: {REASONS[kernel]}"
    rows["kernels of CUDA"] = ", ".join(CUDA_KERNELS) or "none"
    paths = {"package": PACKAGE, "configs": configs_folder(), "data": DataConfig().data_folder}
    rows |= {name: str(path.absolute()) for name, path in (paths | {"here": Path()}).items()}
    starts = tuple(VARIABLES.split())
    rows |= {name: os.environ[name] for name in sorted(os.environ) if name.startswith(starts)}
    print("| | |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


def find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
