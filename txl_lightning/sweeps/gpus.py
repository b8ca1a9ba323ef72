"""The GPUs of trials that run at once."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

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
