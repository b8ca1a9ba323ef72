"""The environment of a measurement: machine, commit, memory."""

import os
import platform
import re
import resource
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import __version__

REPOSITORY = Path(__file__).parents[1]
CPU_INFO = Path("/proc/cpuinfo")
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
"""Flags of a CPU on which the products of torch depend, and so the last digits of results."""


def measure_peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes, of the device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return time, commit, versions and machine of a measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    machine = {"device": name, "cpu": find_cpu_name(), "instructions": list_instructions()}
    machine["threads"] = torch.get_num_threads()
    machine |= {"load": os.getloadavg()[0], "torch": torch.__version__}
    machine["python"] = platform.python_version()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "release": __version__, "commit": find_commit(), "machine": machine}


def find_cpu_name() -> str:
    return find_cpu_info("model name") or platform.processor() or platform.machine()


def list_instructions() -> str:
    """Return those of INSTRUCTIONS that the CPU has, as "avx2 avx512f"; "" where none is known."""
    flags = find_cpu_info("flags|Features").split()
    return " ".join(name for name in INSTRUCTIONS if name in flags)


def find_cpu_info(field: str) -> str:
    """Return a field of Linux's description of the first CPU; "" where there is none."""
    text = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    match = re.search(rf"^(?:{field})\s*: (.+)", text, re.M)
    return match[1] if match else ""


@cache
def find_commit() -> str | None:
    """Return this code's commit, "-dirty" if files differ, when it was first asked for; None
    outside its repository."""
    if not (REPOSITORY / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    # A hook of another repository names that one.
    env = {name: os.environ[name] for name in os.environ if not name.startswith("GIT_")}
    options = {"cwd": REPOSITORY, "capture_output": True, "text": True, "env": env}
    try:
        return subprocess.run(command, check=True, **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
