"""A CUDA graph. It has not run on a GPU yet."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import require


class CudaGraph:
    """Operations on a GPU, captured once; `outputs` are the same tensors after each replay."""

    device = "cuda"

    @classmethod
    def require_device(cls, device: torch.device, key: str) -> None:
        """Refuse the setting of a key for a network on a device that a capture does not record."""
        require(device.type == cls.device, key, "true", f"false on a device of type {device.type}")
        # Operations on another one would be computed, but not recorded.
        is_current = device.index is None or device.index == torch.cuda.current_device()
        require(is_current, key, "true", f"false on {device}, not torch's current device")

    def __init__(self, compute: Callable[[], Sequence[Any]], pool: Any = None) -> None:
        self.graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile, for example to pin memory.
        options = {"pool": pool, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(self.graph, **options):
            self.outputs = compute()
        self.pool = self.graph.pool()

    @staticmethod
    def warm_up(compute: Callable[[], Any]) -> None:
        """Compute before a capture: first calls choose algorithms, compile, and may wait."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                compute()
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self) -> None:
        self.graph.replay()
