"""Exchange of values between the processes of a run, and of shards between their devices."""

from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor, distribute_tensor


class CpuProcessGroup:
    """Exchange values between all ranks without waiting for a GPU; all of them call it together."""

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
        """Return the values of all ranks, in their order, on rank 0; None on the others."""
        if self.group is None:
            return [value]
        values = [None] * self.world_size if self.rank == 0 else None
        distributed.gather_object(value, values, dst=0, group=self.group)
        return values


def gather_shards(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor; any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return a tensor that all ranks have, sharded as a weight is."""
    if not isinstance(weight, DTensor):
        return tensor
    return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)
