"""The GPUs of trials that run at once: which each sees, and whether they are enough."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import yaml

from ..errors import flatten_settings, require
from ..files import find_config, load_yaml

DEVICES = "trainer.devices"
ACCELERATOR = "trainer.accelerator"
GPUS = ("auto", "gpu", "cuda")  # accelerators
VISIBLE = "CUDA_VISIBLE_DEVICES"  # the GPUs that a process sees


class SharedGpus:
    """Groups of GPUs, of which each trial gets the one that the fewest others use; trials are
    threads here."""

    def __init__(self, groups: list[str]) -> None:
        self.users = Counter(dict.fromkeys(groups, 0))
        self.lock = Lock()

    @contextmanager
    def borrow(self) -> Iterator[dict[str, str]]:
        """Yield the variable that shows a process its GPUs; without GPUs, nothing."""
        if not self.users:
            yield {}
            return
        with self.lock:
            name = min(self.users, key=self.users.__getitem__)
            self.users[name] += 1
        try:
            yield {VISIBLE: name}
        finally:
            with self.lock:
                self.users[name] -= 1


def list_gpus() -> list[str]:
    """Return the names of the GPUs that this process sees, as CUDA_VISIBLE_DEVICES has them."""
    n_gpu = torch.cuda.device_count()
    visible = os.environ.get(VISIBLE)
    # CUDA ignores what follows the first invalid name.
    return [*map(str, range(n_gpu))] if visible is None else visible.split(",")[:n_gpu]


def group_gpus(names: list[str], n_job: int) -> list[str]:
    """Return a group of equally many GPUs for each job; each GPU alone if jobs are more.

    >>> group_gpus(["0", "1", "2", "3", "4"], n_job=2), group_gpus(["0", "1"], n_job=3)
    (['0,1', '2,3'], ['0', '1'])
    """
    n_each = max(len(names) // n_job, 1)
    n_group = min(len(names), n_job)
    return [",".join(names[n * n_each : (n + 1) * n_each]) for n in range(n_group)]


def require_share(words: Sequence[str], n_gpu: int) -> None:
    """Refuse a command of fit that asks for more GPUs than it sees; without GPUs it asks for
    processes on CPUs."""
    settings = read_settings(words)
    n_asked = count_devices(settings.get(DEVICES))
    is_enough = not n_gpu or settings.get(ACCELERATOR, GPUS[0]) not in GPUS or n_asked <= n_gpu
    require(is_enough, DEVICES, settings.get(DEVICES), f"at most {n_gpu}, the GPUs of a trial")


def count_devices(value: Any) -> int:
    """Return the least number of devices with which a value of trainer.devices is possible.

    It is 4 for 4, and for the third and the fourth ("2,3"); 0 for auto.
    """
    text = str(value)
    with suppress(yaml.YAMLError, ValueError):
        value = load_yaml(f"[{text}]" if "," in text and "[" not in text else text)
    if isinstance(value, list):
        return max([each + 1 for each in value if type(each) is int], default=0)
    return value if type(value) is int else 0


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings of configs among words, and the options, which come after all files."""
    configs: dict[str, Any] = {}
    options = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, sign, value = word.partition("=")
        value = value if sign else following
        if name in ("-c", "--config"):
            configs |= read_config(value)
        elif name.startswith("--"):
            options[name[2:].replace("-", "_")] = value
    return configs | options


def read_config(name: str) -> dict[str, Any]:
    """Return the settings of a config by whole key; none if it cannot be read, as fit says why."""
    path = Path(find_config(name))
    with suppress(OSError, ValueError, yaml.YAMLError):
        settings = load_yaml(path.read_text(encoding="utf-8") if path.is_file() else name)
        return flatten_settings(settings) if isinstance(settings, dict) else {}
    return {}
