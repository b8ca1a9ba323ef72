"""FSDP2Strategy: weights and optimizer state sharded over devices."""

from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy, StrategyRegistry
from torch.distributed import fsdp
from torch.distributed.checkpoint import state_dict as distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module
from torch.optim import Optimizer

from ..errors import require
from ..model import Network

NARROW = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
FULL = distributed.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class FSDP2Strategy(ModelParallelStrategy):
    """Store a shard of the weights and of the optimizer state on each device (FSDP2).

    A checkpoint is one file, as with one device, which any number of devices can resume.
    """

    # ModelParallelStrategy loads weights and optimizers before the hook on_load_checkpoint.
    lightning_restore_optimizer = True
    load_checkpoint = Strategy.load_checkpoint

    def __init__(self, **options: Any) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **options)

    def setup_environment(self) -> None:
        # Private: Lightning would add a dimension of the mesh for machines.
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def load_model_state_dict(self, checkpoint: dict[str, Any], strict: bool = True) -> None:
        distributed.set_model_state_dict(self.model, checkpoint["state_dict"], options=FULL)

    def load_optimizer_state_dict(self, checkpoint: dict[str, Any]) -> None:
        states = checkpoint["optimizer_states"]
        for optimizer, state in zip(self.optimizers, states, strict=True):
            named = name_parameters(state, optimizer, self.model)
            distributed.set_optimizer_state_dict(self.model, optimizer, named, options=FULL)


# So that `trainer.strategy: fsdp2` names it.
StrategyRegistry.register("fsdp2", FSDP2Strategy)


def shard(net: Network, mesh: DeviceMesh, precision: str) -> None:
    """Shard every parameter over the devices of a mesh, which has no tensor parallelism.

    A layer's parameters are gathered when it is computed, with mixed precision in the lower one;
    the others (embedding and softmax, which may be tied, and positions) once per step.
    """
    size = mesh["tensor_parallel"].size()
    expected = "1, as it is with --trainer.strategy fsdp2"
    require(size == 1, "trainer.strategy.tensor_parallel_size", size, expected)
    if isinstance(net, fsdp.FSDPModule):
        # Evaluation leaves parameters gathered, but the optimizer needs the shards.
        net.reshard()
        return
    mesh = mesh["data_parallel"]
    policy = fsdp.MixedPrecisionPolicy()
    if precision in NARROW:
        types = {"param_dtype": NARROW[precision], "reduce_dtype": torch.float32}
        policy = fsdp.MixedPrecisionPolicy(**types)
    for layer in getattr(net, "layers", ()):
        fsdp.fully_shard(layer, mesh=mesh, mp_policy=policy)
    # The softmax follows `hidden`, which all functions called instead of `forward` begin with.
    fsdp.fully_shard(net, mesh=mesh, reshard_after_forward=False)
    fsdp.register_fsdp_forward_method(net, "hidden" if hasattr(net, "hidden") else "loss")


def name_parameters(state: dict[str, Any], optimizer: Optimizer, model: Module) -> dict[str, Any]:
    """Return an optimizer's state by names of weights instead of their numbers.

    A number is a position in the groups: Lightning saves shards in the model's order, and the
    optimizer has its own.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_name: dict[str, Any] = {}
    groups = []
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        group_names = [names[parameter] for parameter in group["params"]]
        groups.append(saved | {"params": group_names})
        numbered = zip(saved["params"], group_names, strict=True)
        by_name |= {name: state["state"][n] for n, name in numbered if n in state["state"]}
    return {"state": by_name, "param_groups": groups}
