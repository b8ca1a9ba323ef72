"""The GPUs of trials that run at once."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"  # the GPUs that a process sees


class SharedGpus:
    """GPUs of which each trial gets the one that the fewest others use; trials are threads here."""

    def __init__(self, names: list[str]) -> None:
        self.users = Counter(dict.fromkeys(names, 0))
        self.lock = Lock()

    @contextmanager
    def borrow(self) -> Iterator[dict[str, str]]:
        """Yield the variable that shows a process one GPU; without GPUs, nothing."""
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
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return [str(n) for n in range(torch.cuda.device_count())]
    return [name for name in visible.split(",") if name]
