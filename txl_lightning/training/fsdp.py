"""Models too large for one device: sharded weights and optimizer state."""

from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch.distributed.checkpoint import state_dict as distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn import Module
from torch.optim import Optimizer

from ..checkpoints.files import load_checkpoint
from ..errors import require
from ..model import TransformerXL

FULL = distributed.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class FSDP2Strategy(ModelParallelStrategy):
    """Each device holds a shard of the weights and of the optimizer state (FSDP2).

    A checkpoint is one file, as with one device; any number of devices can resume it.
    """

    # Lightning loads weights and optimizers before it calls the hook on_load_checkpoint.
    lightning_restore_optimizer = True

    def __init__(self, **options: Any) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **options)

    def setup_environment(self) -> None:
        # Private: one mesh dimension for all devices; Lightning would add one for machines.
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_checkpoint(Path(checkpoint_path))

    def load_model_state_dict(self, checkpoint: dict[str, Any], strict: bool = True) -> None:
        distributed.set_model_state_dict(self.model, checkpoint["state_dict"], options=FULL)

    def load_optimizer_state_dict(self, checkpoint: dict[str, Any]) -> None:
        states = checkpoint["optimizer_states"]
        for optimizer, state in zip(self.optimizers, states, strict=True):
            named = name_parameters(state, optimizer, self.model)
            distributed.set_optimizer_state_dict(self.model, optimizer, named, options=FULL)


# So that `trainer.strategy: fsdp2` names it.
StrategyRegistry.register("fsdp2", FSDP2Strategy)


def shard(net: TransformerXL, mesh: DeviceMesh) -> None:
    """Shard every parameter over the devices of the mesh.

    A layer's parameters are gathered when it is computed. The others (embedding and softmax, which
    may be shared, and positions) are gathered once per step.
    """
    if isinstance(net, FSDPModule):
        # Evaluation leaves the others gathered, but an optimizer needs the shards.
        net.reshard()
        return
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    # The softmax follows `hidden`, which all functions called instead of `forward` begin with.
    fully_shard(net, mesh=mesh, reshard_after_forward=False)
    register_fsdp_forward_method(net, "hidden")


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return a one-dimensional mesh, or refuse a strategy with tensor parallelism."""
    size = mesh["tensor_parallel"].size()
    expected = "1, as it is with --trainer.strategy fsdp2"
    require(size == 1, "trainer.strategy.tensor_parallel_size", size, expected)
    return mesh["data_parallel"]


def name_parameters(state: dict[str, Any], optimizer: Optimizer, model: Module) -> dict[str, Any]:
    """Return an optimizer's state by the names of weights instead of numbers.

    Numbers are positions in the groups: when saving shards, Lightning counts in the model's order,
    the optimizer in its own.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_name: dict[str, Any] = {}
    groups = []
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        in_group = [names[parameter] for parameter in group["params"]]
        groups.append(saved | {"params": in_group})
        numbered = zip(saved["params"], in_group, strict=True)
        by_name |= {name: state["state"][n] for n, name in numbered if n in state["state"]}
    return {"state": by_name, "param_groups": groups}
