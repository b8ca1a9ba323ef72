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


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes, of the device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return time, commit, versions and machine of a measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    machine = {"device": name, "cpu": cpu_name(), "threads": torch.get_num_threads()}
    machine |= {"load": os.getloadavg()[0], "torch": torch.__version__}
    machine["python"] = platform.python_version()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "release": __version__, "commit": commit(), "machine": machine}


def cpu_name() -> str:
    cpus = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.+)", cpus.read_text(), re.M) if cpus.exists() else None
    return match[1] if match else platform.processor() or platform.machine()


@cache
def commit() -> str | None:
    """Return this code's commit, "-dirty" if files differ, when it was first asked for; None
    outside its repository."""
    if not (REPOSITORY / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    options = {"cwd": REPOSITORY, "capture_output": True, "text": True}
    try:
        return subprocess.run(command, check=True, **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
