"""A CUDA graph. It has not run on a GPU yet."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class CudaGraph:
    """Operations on a GPU, captured once; `outputs` are the same tensors after each replay."""

    device = "cuda"

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
