"""A CPU that imitates a GPU: its values are known later, and its operations can be captured."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from txl_lightning.model.graph import CudaGraph

READS = {
    "item", "tolist", "numpy", "cpu", "nonzero", "equal",
    "__bool__", "__float__", "__int__", "__index__",
}  # fmt: skip


class LateDevice(TorchFunctionMode):
    """Tensors seem to be elsewhere than on the CPU; to read their values may be forbidden."""

    def __init__(self, forbids=False):
        super().__init__()
        self.forbids = forbids
        self.reads = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.is_cpu.__get__:
            return False
        if getattr(func, "__name__", "") in READS:
            self.reads.append(func.__name__)
            if self.forbids:
                raise AssertionError(f"{func.__name__} waits for the device")
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Records operations, with the tensors that they read and write."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


def list_tensors(tree):
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def find_places(tree):
    return {each.untyped_storage().data_ptr() for each in list_tensors(tree)}


class RecordedGraph(CudaGraph):
    """Imitates CudaGraph: no Python runs in a replay, and every tensor stays in its place.

    A graph of a pool may use again what an earlier one has left there: after it, only outputs have
    their values.
    """

    device = "cpu"
    made: ClassVar = []

    def __init__(self, compute, pool=None):
        RecordedGraph.made.append(self)
        with LateDevice(forbids=True), Recorder() as recorder:
            self.outputs = compute()
        self.calls = recorder.calls
        self.before = [] if pool is None else [pool]
        self.pool = self
        self.replays = 0

    @staticmethod
    def warm_up(compute):
        compute()

    def replay(self):
        self.replays += 1
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for func, args, kwargs, out in self.calls:
                new = func(*args, **kwargs)
                given = find_places((args, kwargs))
                for kept, value in zip(list_tensors(out), list_tensors(new), strict=True):
                    if kept.untyped_storage().data_ptr() not in given:
                        kept.copy_(value)
            self.spoil()

    def spoil(self):
        """Overwrite all values but outputs, once the last graph of a pool has run."""
        graphs = [*self.before, self] if self.before else []
        kept = find_places([graph.outputs for graph in graphs])
        for graph in graphs:
            for _, args, kwargs, out in graph.calls:
                given = find_places((args, kwargs))
                for each in list_tensors(out):
                    place = each.untyped_storage().data_ptr()
                    if each.is_floating_point() and place not in kept | given:
                        each.fill_(float("nan"))


@contextmanager
def imitate_graphs(monkeypatch, *modules) -> Iterator[list[RecordedGraph]]:
    """Imitate the graphs of modules on a CPU that seems to be another device; yield those made."""
    for module in modules:
        monkeypatch.setattr(module, "CudaGraph", RecordedGraph)
    monkeypatch.setattr(RecordedGraph, "made", made := [])
    with LateDevice():
        yield made
