"""Values that the processes of a run exchange, without waiting for a GPU."""

from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor


class Ranks:
    """Communication between all processes on the CPU; all ranks call together."""

    def __init__(self) -> None:
        self.rank, self.world_size, self.group = 0, 1, None
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
        if self.world_size > 1:
            self.group = distributed.new_group(backend="gloo")

    def max(self, *numbers: int) -> list[int]:
        """Return the largest of each number over all ranks."""
        if self.group is None:
            return list(numbers)
        largest = torch.tensor(numbers)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=self.group)
        return largest.tolist()

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value, in the order of ranks, on rank 0; None on the others."""
        if self.group is None:
            return [value]
        values = [None] * self.world_size if self.rank == 0 else None
        distributed.gather_object(value, values, dst=0, group=self.group)
        return values


def gather_shards(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
