"""Several processes train like one, and recomputed activations are equal."""

import csv
import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

from tests.helpers.nodes import run_on_nodes
from txl_lightning import LanguageModel, OptimConfig, TransformerXLConfig
from txl_lightning.checkpoints import load
from txl_lightning.data.stream import IGNORED
from txl_lightning.errors import silence_warnings
from txl_lightning.training.cli import run_trainer
from txl_lightning.training.ranks import FSDP2Strategy, check_launcher, require_srun
from txl_lightning.training.segments import recompute_layers

COMMON = [
    "--model.net.n_layer=2", "--model.net.n_head=2", "--model.net.d_model=16",
    "--model.net.mem_len=12", "--model.net.dropout=0", "--model.net.init_std=0.2",
    "--model.optim.name=muon", "--model.optim.weight_decay=0.1", "--model.optim.lr=0.01",
    "--model.optim.schedule=constant", "--data.tgt_len=8", "--data.batch_size=4",
    "--trainer.max_steps=8", "--trainer.val_check_interval=2", "--trainer.limit_val_batches=2",
    "--trainer.gradient_clip_val=0.05", "--trainer.log_every_n_steps=1",
    "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false",
    # Two partial sums round differently from one; bfloat16, where it is fast, would show that.
    "--trainer.precision=64-true",
]  # fmt: skip
NARROW = ["--trainer.precision=bf16-mixed", "--model.optim.name=adamw"]
FOUR = ["--trainer.max_steps=4"]
ADAMW = ["--model.optim.name=adamw"]
LAMB = ["--model.optim.name=lamb"]
CLUSTERS = [
    "--model.net.cutoffs=[100,110]", "--model.net.div_val=2",
    "--model.net.tie_projs=[true,false,true]",
]  # fmt: skip
ACCUMULATE = [
    "--trainer.accumulate_grad_batches=3", "--data.document_unit=lines", "--data.segments=varlen",
    "--model.optim.name=sgd", "--trainer.gradient_clip_val=null",
]  # fmt: skip
JOIN = ["--model.gradient_segments=2", "--trainer.accumulate_grad_batches=2"]
AVERAGE = ["--trainer.callbacks=txl_lightning.training.callbacks.weight_averaging.WeightAverage"]
TWO_NODES = ["--trainer.num_nodes=2", "--trainer.devices=1"]
DDP = [*TWO_NODES, "--trainer.strategy=ddp"]
PAIRS = "--pairs"
FSDP = [*TWO_NODES, "--trainer.strategy=fsdp2"]
CUT = [
    # This strategy does not support 64-true.
    "--trainer.precision=32-true",
    *TWO_NODES, "--trainer.strategy=lightning.pytorch.strategies.ModelParallelStrategy",
    "--trainer.strategy.data_parallel_size=1", "--trainer.strategy.tensor_parallel_size=2",
]  # fmt: skip


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
SRUN |= {"SLURM_NNODES": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
BY_HAND = {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}
BATCH = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
BATCH["SLURM_NODEID"] = "0"
BASH = {"SLURM_JOB_NAME": "bash"}
"""Variables that launchers set."""


def make_trainer(monkeypatch, variables: dict[str, str], n_device: int, n_node: int) -> Trainer:
    for name, value in ({"RANK": "0"} | variables).items():
        monkeypatch.setenv(name, value)
    # Lightning sets it.
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", devices=n_device, num_nodes=n_node, **options)


@pytest.mark.parametrize(
    ("variables", "sizes", "message"),
    [
        (TORCHRUN, (1, 1), "devices 2 --trainer.num_nodes 1: WORLD_SIZE is 2"),
        (TORCHRUN | SRUN, (1, 1), "devices 2 --trainer.num_nodes 1: WORLD_SIZE is 2"),
        (SRUN, (1, 1), "devices 2 --trainer.num_nodes 1: SLURM_STEP_NUM_TASKS is 2"),
        (SRUN | BASH, (1, 1), "devices 2 --trainer.num_nodes 1: SLURM_STEP_NUM_TASKS is 2"),
        (SRUN | BASH, (2, 1), "SLURM_STEP_NUM_TASKS: invalid 2; expected srun --job-name train"),
        (BATCH, (2, 1), "devices 1 --trainer.num_nodes 1: SLURM_NTASKS is 1"),
        (MPIRUN, (1, 1), "devices 2 --trainer.num_nodes 2: OMPI_COMM_WORLD_SIZE is 4"),
        (MPIRUN, (2, 2), "OMPI_COMM_WORLD_SIZE: invalid 4; expected pip install mpi4py"),
        ({"PMI_SIZE": "2"}, (1, 1), "devices 2 --trainer.num_nodes 1: PMI_SIZE is 2"),
        (BY_HAND, (1, 1), "devices 2 --trainer.num_nodes 1: WORLD_SIZE is 2"),
        ({"WORLD_SIZE": "2"}, (2, 1), "WORLD_SIZE: invalid 2; expected torchrun, or a launcher"),
        ({"LOCAL_RANK": "1"}, (1, 1), r"LOCAL_RANK: invalid 1; expected less than .* \(1\)"),
    ],
)
def test_a_trainer_without_a_place_for_each_process_of_its_launcher_is_refused(
    monkeypatch, variables, sizes, message
):
    trainer = make_trainer(monkeypatch, variables, *sizes)
    with pytest.raises(ValueError, match=message):
        check_launcher(trainer)


@pytest.mark.parametrize(
    ("variables", "sizes"),
    [
        ({}, (2, 1)),
        (TORCHRUN, (2, 1)),
        (SRUN, (2, 1)),
        # One process on each machine starts the others.
        ({"WORLD_SIZE": "2", "NODE_RANK": "1"}, (2, 2)),
        ({"WORLD_SIZE": "1"}, (2, 1)),
        (SRUN | BASH | {"SLURM_STEP_NUM_TASKS": "1"}, (2, 1)),
        # As Lightning starts the other processes, in a shell of SLURM or under mpirun.
        (SRUN | BASH | BY_HAND | {"SLURM_STEP_NUM_TASKS": "1", "LOCAL_RANK": "1"}, (2, 1)),
        (BY_HAND | {"OMPI_COMM_WORLD_SIZE": "1"}, (2, 1)),
        # torchrun on each machine, started by srun.
        (TORCHRUN | SRUN | {"WORLD_SIZE": "4", "GROUP_RANK": "0"}, (2, 2)),
        # A shell of an allocation with several tasks.
        ({"SLURM_NTASKS": "2"} | BASH, (2, 1)),
        (BATCH, (1, 1)),
    ],
)
def test_a_trainer_with_a_place_for_each_process_of_its_launcher_is_accepted(
    monkeypatch, variables, sizes
):
    ranks = {"RANK": "0", "LOCAL_RANK": "0"} if "TORCHELASTIC_RUN_ID" in variables else {}
    trainer = make_trainer(monkeypatch, ranks | variables, *sizes)
    require_srun()
    check_launcher(trainer)


def test_tasks_of_a_job_that_srun_has_not_started_are_refused(monkeypatch):
    for name, value in (BATCH | {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="SLURM_NTASKS: invalid 2; expected 1, or `srun txl-l"):
        require_srun()
    # torchrun has started them.
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    require_srun()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_each_of_two_processes_without_devices_is_refused_and_makes_no_run(
    refused, small, monkeypatch, rank
):
    for name, value in (TORCHRUN | {"RANK": rank, "LOCAL_RANK": rank}).items():
        monkeypatch.setenv(name, value)
    code, line = refused("fit", *small)
    assert (code, line) == (
        2,
        "trainer.devices: invalid 1, with trainer.num_nodes 1; "
        "expected --trainer.devices 2 --trainer.num_nodes 1: WORLD_SIZE is 2",
    )
    assert not list(Path("runs").glob("version_*"))


def test_slurm_on_the_machine_is_no_reason_for_a_warning(accepted, small, tmp_path, monkeypatch):
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    said = accepted("fit", *small)
    assert "warning" not in said.err
    assert "srun" not in said.err


def test_devices_that_share_a_model_read_different_rows(monkeypatch):
    # Lightning's environment sets it, for the whole process.
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    strategy = FSDP2Strategy()
    strategy.cluster_environment = LightningEnvironment()
    strategy.cluster_environment.set_world_size(4)
    strategy.cluster_environment.set_global_rank(3)
    assert strategy.distributed_sampler_kwargs == {"num_replicas": 4, "rank": 3}


@pytest.fixture(scope="module")
def letters(tmp_path_factory, write_letters) -> Path:
    """The folder of a text, with a subfolder for each run."""
    return write_letters(tmp_path_factory.mktemp("devices")).parent


@pytest.fixture(scope="module")
def memory_NBMD(letters) -> torch.Tensor:
    """Train `one`, a run of one process; return its memory after eight steps."""
    model = run_trainer(command_line(letters, "one")).lightning_module
    return model.memory_bank.committed["train", 0].h_NBMD


@pytest.fixture(scope="module")
def runs(letters, memory_NBMD, run_on_two_nodes) -> Path:
    """Train the runs of two processes that are compared with `one`; return their folder."""
    run_trainer(command_line(letters, "averaged", *FOUR, *AVERAGE))
    run_trainer(command_line(letters, "one_lamb", *FOUR, *LAMB, *CLUSTERS))
    run_trainer(command_line(letters, "one_narrow", *FOUR, *NARROW))
    run_trainer(command_line(letters, "one_joined", *FOUR, *JOIN))
    accumulate = [*ACCUMULATE, f"--data.path={write_half_lines(letters)}"]
    run_trainer(command_line(letters, "one_accumulated", *FOUR, *accumulate))
    two = {
        "ddp": DDP,
        "fsdp_narrow": [*FSDP, *FOUR, *NARROW],
        "ddp_averaged": [*DDP, *FOUR, *AVERAGE],
        "fsdp": [*FSDP, *FOUR, "--model.recompute=true", "--data.micro_batches=2"],
        "fsdp_on": [*FSDP, *resume_options(letters, "fsdp")],
        "fsdp_lamb": [*FSDP, *FOUR, *LAMB, *CLUSTERS],
        "ddp_lamb": [*DDP, *FOUR, *LAMB, *CLUSTERS],
        "fsdp_no_more": [*FSDP, *resume_options(letters, "averaged")],
        "fsdp_averaged": [*FSDP, *AVERAGE],
        "cut": CUT,
        "ddp_accumulated": [*DDP, *FOUR, *accumulate],
        "fsdp_accumulated": [*FSDP, *FOUR, *accumulate, "--model.recompute=true"],
        "fsdp_joined": [*FSDP, *FOUR, *JOIN, "--data.micro_batches=2"],
        "pairs": [PAIRS],
    }
    run_on_two_nodes({name: command_line(letters, name, *two[name]) for name in two})
    return letters


def command_line(folder: Path, name: str, *options: str) -> list[str]:
    where = [f"--data.path={folder / 'letters.txt'}", f"--data.data_dir={folder / 'data'}"]
    return ["fit", *COMMON, *where, f"--trainer.default_root_dir={folder / name}", *options]


def write_half_lines(folder: Path) -> Path:
    """Write the text again, with short lines in every second row: ranks have unequal targets."""
    text = bytearray((folder / "letters.txt").read_bytes())
    for start in range(0, len(text), 500):
        text[start : start + 250 : 3] = b"\n" * len(text[start : start + 250 : 3])
    (folder / "lines.txt").write_bytes(text)
    return folder / "lines.txt"


def last(folder: Path, run: str) -> Path:
    return folder / run / "version_0" / "checkpoints" / "last.ckpt"


def resume_options(folder: Path, run: str) -> list[str]:
    return [f"--ckpt_path={last(folder, run)}"]


@pytest.fixture(scope="module")
def run_on_two_nodes(letters, processes):
    """Run command lines in two processes that share no more than two machines would."""

    def run(command_lines: dict[str, list[str]]) -> None:
        (letters / "runs.json").write_text(json.dumps(command_lines))
        run_on_nodes(processes, 2, __file__, letters)

    return run


def run_all(folder: Path) -> None:
    """Run command lines in sequence; save the state of this process after each.

    One process for all, because starting takes seconds.
    """
    silence_warnings()
    for name, arguments in json.loads((folder / "runs.json").read_text()).items():
        try:
            is_pairs = PAIRS in arguments
            kept = train_on_pairs() if is_pairs else describe_state(run_trainer(arguments))
        except ValueError as error:
            kept = {"refused": str(error)}
        torch.save(kept, folder / f"{name}.rank{os.environ['RANK']}.pt")


def make_pairs_model() -> LanguageModel:
    torch.manual_seed(1)
    sizes = {"n_token": 9, "n_layer": 1, "d_model": 8, "n_head": 2, "mem_len": 0}
    return LanguageModel(TransformerXLConfig(**sizes), OptimConfig("sgd", lr=0.5, momentum=0.0))


def make_pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return texts with 3, 8, 8 and 1 targets."""
    ids_NT = torch.arange(36).reshape(4, 9) % 7
    pairs = [(ids_T[:-1].clone(), ids_T[1:].clone()) for ids_T in ids_NT]
    pairs[0][1][3:] = IGNORED
    pairs[3][1][1:] = IGNORED
    return pairs


def train_on_pairs() -> dict:
    """Take a step on two batches of each rank, from a loader that knows no ranks."""
    model = make_pairs_model()
    silent = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    silent["enable_checkpointing"] = False
    options = {"accelerator": "cpu", "strategy": "ddp", "num_nodes": 2, "devices": 1}
    options |= {"max_steps": 1, "accumulate_grad_batches": 2, "limit_val_batches": 0}
    trainer = Trainer(**silent, **options)
    trainer.fit(model, DataLoader(make_pairs(), batch_size=1), DataLoader(make_pairs()))
    return {"weights": {name: each.clone() for name, each in model.net.state_dict().items()}}


def describe_state(trainer: Trainer) -> dict:
    """Return the memory and the number of stored elements after a run and an evaluation."""
    model = trainer.lightning_module
    h_NBMD = model.memory_bank.committed["train", 0].h_NBMD
    tokens_BL = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        model.net.loss(tokens_BL, tokens_BL)
    model.configure_model()
    [optimizer] = trainer.optimizers
    tensors = list(model.parameters())
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    held = sum(t.to_local().numel() if hasattr(t, "to_local") else t.numel() for t in tensors)
    return {"h_NBMD": h_NBMD, "held": held}


def losses(folder: Path, run: str) -> list[float]:
    with (folder / run / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("train/nats", "train/tokens_seen", "val/nats")
    return [float(row[name]) for row in rows for name in names if row[name]]


def load_of_each_rank(folder: Path, run: str, what: str) -> list:
    return [torch.load(folder / f"{run}.rank{rank}.pt")[what] for rank in (0, 1)]


@pytest.mark.parametrize(
    ("runs_of_two", "run_of_one"),
    [
        (["ddp"], "one"),
        # Sharded, and resumed.
        (["fsdp", "fsdp_on"], "one"),
        (["ddp_lamb"], "one_lamb"),
        (["fsdp_lamb"], "one_lamb"),
    ],
)
@pytest.mark.slow
def test_two_nodes_take_the_steps_of_one_process(runs, runs_of_two, run_of_one):
    both = [each for run in runs_of_two for each in losses(runs, run)]
    assert both == pytest.approx(losses(runs, run_of_one), rel=1e-5)
    assert len(both) == (8 + 8 + 4 if run_of_one == "one" else 10)


@pytest.mark.parametrize(
    ("run_of_two", "run_of_one"),
    [
        ("ddp_accumulated", "one_accumulated"),
        ("fsdp_accumulated", "one_accumulated"),
        # Each backward pass goes through several segments.
        ("fsdp_joined", "one_joined"),
    ],
)
@pytest.mark.slow
def test_two_nodes_that_accumulate_segments_train_like_one_process(runs, run_of_two, run_of_one):
    assert losses(runs, run_of_two) == pytest.approx(losses(runs, run_of_one), rel=1e-5)


@pytest.mark.slow
def test_two_nodes_take_the_mean_over_the_targets_of_both_from_any_loader(runs):
    net = make_pairs_model().net
    pairs = make_pairs()
    nats = [net.loss(*map(torch.atleast_2d, pair))[0].sum() for pair in pairs]
    n_target = sum(int((targets_L != IGNORED).sum()) for _, targets_L in pairs)
    (torch.stack(nats).sum() / n_target).backward()
    expected = {name: (each - 0.5 * each.grad).detach() for name, each in net.named_parameters()}
    for weights in load_of_each_rank(runs, "pairs", "weights"):
        actual = {name: weights[name] for name in expected}
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_two_nodes_that_gather_weights_in_bfloat16_train_like_one_process(runs):
    sharded, whole = (losses(runs, run) for run in ("fsdp_narrow", "one_narrow"))
    assert sharded == pytest.approx(whole, rel=5e-3)
    weights = torch.load(last(runs, "fsdp_narrow"), weights_only=True)["state_dict"]
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@pytest.mark.parametrize("run", ["ddp", "fsdp_on"])
@pytest.mark.slow
def test_each_process_keeps_the_memory_of_its_own_rows(runs, memory_NBMD, run):
    """With a buffer, DDP would give all processes the memory of the first one."""
    first, second = load_of_each_rank(runs, run, "h_NBMD")
    assert torch.allclose(torch.cat([first, second], dim=1), memory_NBMD, atol=1e-4)
    assert not torch.allclose(first, second, atol=0.1)


@pytest.mark.slow
def test_each_process_stores_half_of_the_weights_and_of_the_optimizer_state(runs):
    whole = load_of_each_rank(runs, "ddp", "held")
    for part, all_of_it in zip(load_of_each_rank(runs, "fsdp", "held"), whole, strict=True):
        assert part / all_of_it == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
def test_sharded_run_is_saved_like_an_unsharded_one(runs):
    one, sharded = (torch.load(last(runs, run), weights_only=True) for run in ("one", "fsdp_on"))
    assert sharded.keys() == one.keys()
    torch.testing.assert_close(sharded["state_dict"], one["state_dict"], rtol=1e-5, atol=1e-4)
    assert load(last(runs, "fsdp_on"))


@pytest.mark.slow
def test_one_process_measures_what_two_have_trained(runs):
    options = command_line(runs, "measured", *resume_options(runs, "fsdp_on"))[1:]
    trainer = run_trainer(["validate", *options])
    nats = trainer.callback_metrics["val/nats"].item()
    assert nats == pytest.approx(losses(runs, "fsdp_on")[-1], rel=1e-5)


@pytest.mark.slow
def test_two_nodes_measure_and_save_the_average_of_one_process(runs):
    assert losses(runs, "ddp_averaged") == pytest.approx(losses(runs, "averaged"), rel=1e-5)
    assert losses(runs, "ddp_averaged") != pytest.approx(losses(runs, "one")[:10], rel=1e-5)
    names = ("averaged", "ddp_averaged")
    one, two = (torch.load(last(runs, name), weights_only=True) for name in names)
    for key in ("state_dict", "trained"):
        torch.testing.assert_close(two[key], one[key], rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_sharded_model_is_not_averaged_but_resumes_from_an_average(runs):
    for refused in load_of_each_rank(runs, "fsdp_averaged", "refused"):
        assert refused.startswith(
            "trainer.strategy: invalid fsdp2; expected ddp with WeightAverage"
        )
    assert losses(runs, "fsdp_no_more") == pytest.approx(losses(runs, "one")[10:], rel=1e-5)


@pytest.mark.slow
def test_matrices_are_not_split_for_tensor_parallelism(runs):
    for refused in load_of_each_rank(runs, "cut", "refused"):
        assert refused.startswith("trainer.strategy: invalid ModelParallelStrategy; expected fsdp2")


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:the order of the text is exact")
def test_any_number_of_processes_continues_a_checkpoint_of_any_other_number(
    letters, run_on_two_nodes
):
    for name, options in {"alone": ADAMW, "alone_4": [*ADAMW, *FOUR]}.items():
        run_trainer(command_line(letters, name, *options))
    two = {
        "two_4": [*FSDP, *ADAMW, *FOUR],
        "one_two": [*FSDP, *ADAMW, *resume_options(letters, "alone_4")],
    }
    run_on_two_nodes({name: command_line(letters, name, *two[name]) for name in two})
    run_trainer(command_line(letters, "two_one", *ADAMW, *resume_options(letters, "two_4")))
    expected = losses(letters, "alone")
    for run in ("one_two", "two_one"):
        assert losses(letters, run) == pytest.approx(expected[10:], rel=1e-5), run
    assert losses(letters, "two_4") == pytest.approx(expected[:10], rel=1e-5)


@pytest.mark.faults
def test_devices_of_one_machine_share_a_model(letters, memory_NBMD, processes):
    options = ["--trainer.devices=2", "--trainer.strategy=fsdp2"]
    words = [sys.executable, "-m", "txl_lightning", *command_line(letters, "here", *options)]
    done = processes.run(words, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(letters, "here") == pytest.approx(losses(letters, "one"), rel=1e-5)


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_recomputed_network_computes_the_same_with_less_memory(make_net, count_bytes, kernel):
    net = make_net(n_layer=3, kernel=kernel, dropout=0.2, dropatt=0.1).train()
    names = list(net.state_dict())
    tokens_BL = torch.randint(11, (2, 9))

    def compute() -> list[torch.Tensor]:
        torch.manual_seed(1)
        _, memory = net.loss(tokens_BL, tokens_BL)
        nats_BL, _ = net.loss(tokens_BL, tokens_BL.flip(1), memory)
        return [nats_BL, *torch.autograd.grad(nats_BL.sum(), list(net.parameters()))]

    expected = compute()
    kept = count_bytes(compute)
    for _ in range(2):
        recompute_layers(net)
    assert all(map(torch.equal, compute(), expected))
    assert list(net.state_dict()) == names
    assert count_bytes(compute) < 0.5 * kept


def test_recompute_is_set_for_the_model(fit):
    net = fit({"settings": {"recompute": True}}, max_steps=1).model.net
    assert isinstance(net.call_layer, partial)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
