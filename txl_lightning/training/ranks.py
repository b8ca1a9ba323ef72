"""Several devices: values exchanged between the processes of a run, and shards of its weights."""

import os
from typing import Any

import torch
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy, StrategyRegistry
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, distributed
from torch.distributed import fsdp
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module
from torch.optim import Optimizer

from ..errors import invalid, print_notice, require
from ..model import Network
from ..model.config import is_transformer_xl

print_once = rank_zero_only(print_notice)
NARROW = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
FULL = sharded.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)

SIZES = {
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_SIZE": "MV2_COMM_WORLD_LOCAL_SIZE",
    "PMI_SIZE": "MPI_LOCALNRANKS",
    "JSM_NAMESPACE_SIZE": "JSM_NAMESPACE_LOCAL_SIZE",
    "SLURM_STEP_NUM_TASKS": "SLURM_NTASKS_PER_NODE",
    "WORLD_SIZE": "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS": "SLURM_NTASKS_PER_NODE",  # 1 without srun, and unknown in a shell
}
"""Variables in which launchers count their processes, and those of one machine. A launcher may
inherit the variables of those below it here, of the one that has started it."""
SEEN = {
    "SLURM_STEP_NUM_TASKS": "srun --job-name train (in a job that is named interactive or bash, "
    "Lightning does not see the tasks)",
    "WORLD_SIZE": "torchrun, or a launcher that sets LOCAL_RANK too",
}
"""Launchers that let Lightning see the processes, by the variable; for the others mpi4py."""


def require_gpu(accelerator: Any) -> None:
    """Refuse a kind of GPU that this machine does not have."""
    gpus = {"cuda": [CUDAAccelerator], "mps": [MPSAccelerator]}
    gpus["gpu"] = [CUDAAccelerator, MPSAccelerator]
    has_one = accelerator not in gpus or any(each.is_available() for each in gpus[accelerator])
    expected = "auto or cpu, because torch finds no GPU of this kind"
    require(has_one, "trainer.accelerator", accelerator, expected)


def require_srun() -> None:
    """Refuse to wait for tasks of a SLURM job that nothing has started."""
    n_task = os.environ.get("SLURM_NTASKS", "1")
    if find_size_variable() == "SLURM_NTASKS":
        expected = "1, or `srun txl-lightning ...`, which starts the tasks"
        require(n_task == "1", "SLURM_NTASKS", n_task, expected)


def check_launcher(trainer: Trainer) -> None:
    """Refuse a Trainer that does not share its work with all processes that a launcher started."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    # One of another package knows its processes.
    is_known = environment is None or type(environment).__module__.startswith("lightning.")
    if not is_known:
        return
    variable = find_size_variable()
    if variable is None:
        rank = int(os.environ.get("LOCAL_RANK") or 0)
        expected = f"less than trainer.devices ({trainer.num_devices})"
        require(rank < trainer.num_devices, "LOCAL_RANK", rank, expected)
        return
    n = int(os.environ[variable])
    n_rank = trainer.num_devices * trainer.num_nodes
    is_seen = environment is None or environment.creates_processes_externally
    if n == (n_rank if is_seen else trainer.num_nodes):
        return
    if n == n_rank:
        raise invalid(variable, n, SEEN.get(variable, "pip install mpi4py, or torchrun"))
    here = os.environ.get(SIZES[variable], "")
    n_here = int(here) if here.isdecimal() and 0 < int(here) <= n else n
    options = f"--trainer.devices {n_here} --trainer.num_nodes {n // n_here}"
    sizes = f"{trainer.num_devices}, with trainer.num_nodes {trainer.num_nodes}"
    raise invalid("trainer.devices", sizes, f"{options}: {variable} is {n}")


def find_size_variable() -> str | None:
    """Return the variable in which the launcher that started this process counts its processes."""
    is_set = {name: os.environ.get(name, "").isdecimal() for name in SIZES}
    is_set["SLURM_NTASKS"] = SLURMEnvironment.detect()
    # torchrun, and Lightning for its other ranks, may run in a job of another launcher.
    is_nearest = "TORCHELASTIC_RUN_ID" in os.environ or "LOCAL_RANK" in os.environ
    if is_nearest and is_set["WORLD_SIZE"]:
        return "WORLD_SIZE"
    return next((name for name in SIZES if is_set[name]), None)


class CpuProcessGroup:
    """Exchange values between all ranks without waiting for a GPU; all of them call it together."""

    def __init__(self) -> None:
        self.rank = 0
        self.world_size = 1
        self.group = None
        if distributed.is_available() and distributed.is_initialized():
            self.rank = distributed.get_rank()
            self.world_size = distributed.get_world_size()
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


class FSDP2Strategy(ModelParallelStrategy):
    """Store a shard of the weights and of the optimizer state on each device (FSDP2).

    A checkpoint is one file, as with one device, which any number of devices can resume.
    """

    # ModelParallelStrategy loads weights and optimizers before the hook on_load_checkpoint.
    lightning_restore_optimizer = True
    load_checkpoint = Strategy.load_checkpoint

    def __init__(self, **options: Any) -> None:
        super().__init__(save_distributed_checkpoint=False, **options)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        # Each device has rows of its own; Lightning's mesh gives those of a machine equal ones.
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def load_model_state_dict(self, checkpoint: dict[str, Any], strict: bool = True) -> None:
        sharded.set_model_state_dict(self.model, checkpoint["state_dict"], options=FULL)

    def load_optimizer_state_dict(self, checkpoint: dict[str, Any]) -> None:
        states = checkpoint["optimizer_states"]
        for optimizer, state in zip(self.optimizers, states, strict=True):
            named = name_parameters(state, optimizer, self.model)
            sharded.set_optimizer_state_dict(self.model, optimizer, named, options=FULL)


# So that `trainer.strategy: fsdp2` names it.
StrategyRegistry.register("fsdp2", FSDP2Strategy)


def count_parts(corpus: Any, strategy: Strategy) -> int:
    """Return the micro-batches of a segment; a device with fewer rows computes each alone.

    With fsdp2 all devices compute equally many, because they gather weights for each together.
    """
    if corpus is None:
        return 1
    config = corpus.config
    if isinstance(strategy, FSDP2Strategy):
        return min(config.micro_batches, config.batch_size // strategy.world_size)
    return config.micro_batches


def free_gathered_weights(net: Network) -> None:
    """Leave only the shards of weights, which the optimizer needs."""
    if isinstance(net, fsdp.FSDPModule):
        net.reshard()


def shard_network(net: Network, strategy: Strategy, precision: str) -> None:
    """Shard every parameter over all devices.

    A layer's parameters are gathered when it is computed, with mixed precision in the lower one;
    the others (embedding and softmax, which may be tied, and positions) once per step.
    """
    name = type(strategy).__name__
    expected = "fsdp2, whose checkpoints are one file, without tensor parallelism"
    require(isinstance(strategy, FSDP2Strategy), "trainer.strategy", name, expected)
    expected = f"ddp, as {type(net).__name__} has no layers that can be sharded one by one"
    require(getattr(net, "can_be_sharded", True), "trainer.strategy", "fsdp2", expected)
    if isinstance(net, fsdp.FSDPModule):
        # Evaluation leaves them gathered.
        free_gathered_weights(net)
        return
    mesh = init_device_mesh(strategy.root_device.type, (strategy.world_size,))
    policy = fsdp.MixedPrecisionPolicy()
    # Other networks have states between layers, which would be in lower precision, too.
    if precision in NARROW and is_transformer_xl(net):
        types = {"param_dtype": NARROW[precision], "reduce_dtype": torch.float32}
        policy = fsdp.MixedPrecisionPolicy(**types)
    for layer in getattr(net, "layers", ()):
        fsdp.fully_shard(layer, mesh=mesh, mp_policy=policy)
    # The softmax follows `hidden`, which all functions called instead of `forward` begin with.
    fsdp.fully_shard(net, mesh=mesh, reshard_after_forward=False)
    # The backward passes of all segments of a step need the weights of the softmax.
    net.set_reshard_after_backward(False, recurse=False)
    fsdp.register_fsdp_forward_method(net, "hidden" if hasattr(net, "hidden") else "loss")
    is_sharded = any(isinstance(each, DTensor) for each in net.empty_memory(1).tensors().values())
    expected = f"ddp, as {type(net).__name__} makes its memory from weights, which are shards"
    require(not is_sharded, "trainer.strategy", "fsdp2", expected)


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
