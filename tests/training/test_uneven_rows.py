"""Rows that devices cannot share equally give the same numbers on any number of devices."""

import csv
import json
import os
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.nodes import run_on_nodes
from txl_lightning.data.stream import share_rows
from txl_lightning.errors import silence_warnings
from txl_lightning.runs.folder import KEY
from txl_lightning.training.cli import run_trainer

SEVEN_ROWS = [
    "--model.net.n_layer=2", "--model.net.n_head=2", "--model.net.d_model=16",
    "--model.net.mem_len=12", "--model.net.dropout=0", "--model.net.init_std=0.2",
    "--model.net.cutoffs=[100,110]", "--model.net.div_val=2", "--model.optim.lr=0.01",
    "--model.optim.schedule=constant", "--data.tgt_len=8", "--data.batch_size=7",
    "--data.eval_batch_size=2", "--data.document_unit=lines", "--trainer.gradient_clip_val=0.05",
    "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--report.html=false",
    # Partial sums round differently from one.
    "--trainer.precision=64-true",
]  # fmt: skip
STEPS = [
    "--trainer.val_check_interval=2", "--trainer.limit_val_batches=4", "--trainer.max_steps=6",
    "--trainer.log_every_n_steps=1",
]  # fmt: skip
TWO = ["--trainer.devices=1", "--trainer.num_nodes=2", "--trainer.strategy=ddp"]
THREE = ["--trainer.devices=1", "--trainer.num_nodes=3", "--trainer.strategy=ddp"]
SHARDED = [*THREE, "--trainer.strategy=fsdp2", "--data.micro_batches=3"]
EIGHT = "--trainer.max_steps=8"
LOGGED = (
    "train/nats",
    "train/tokens_seen",
    "train/mem_filled",
    "val/nats",
    "val/memory_gain",
    "val/memory_gain_error",
)


@pytest.mark.parametrize("n_row", [1, 2, 7, 10, 22, 60])
@pytest.mark.parametrize("n_part", [1, 2, 3, 4, 8, 16])
def test_parts_have_all_rows_in_order_and_sizes_that_differ_by_one_at_most(n_row, n_part):
    parts = [share_rows(n_row, part, n_part) for part in range(n_part)]
    assert (parts[0].start, parts[-1].stop) == (0, n_row)
    assert all(before.stop == after.start for before, after in pairwise(parts))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
    # What rank 0 alone measures is of its rows.
    assert sizes[0] == max(sizes)


def write_lines(folder: Path) -> None:
    """Write lines of very different lengths, so that rows have different numbers of targets."""
    rng = np.random.default_rng(1)
    letters = rng.integers(97, 123, 6000).astype(np.uint8)
    letters[rng.integers(6000, size=100)] = 10
    letters[:1500:4] = 10
    (folder / "lines.txt").write_bytes(letters.tobytes())


def continue_from(name: str) -> str:
    """Return the option that names the checkpoint of a run, in the folder of the runs."""
    return f"--ckpt_path={name}/version_0/checkpoints/last.ckpt"


def break_weights(folder: Path) -> None:
    """Write a checkpoint with weights that are no numbers."""
    checkpoint = torch.load(folder / "last.ckpt", weights_only=False)
    # Of the layers; those of embedding and softmax are shared.
    for name, weight in checkpoint["state_dict"].items():
        if "layers." in name:
            weight.fill_(torch.nan)
    torch.save(checkpoint, folder / "broken.ckpt")


def measure(name: str, *devices: str) -> list[list[str]]:
    """Return the commands that measure the run of one process, and write into another folder."""
    return [[command, name, *devices, continue_from("one")] for command in ("test", "predict")]


def run_command(command: str, name: str, *options: str) -> None:
    """Run a command in this process; keep what it measured, or the memory of its rows."""
    where = ["--data.path=lines.txt", "--data.data_dir=data", f"--trainer.default_root_dir={name}"]
    steps = STEPS if command == "fit" else []
    trainer = run_trainer([command, *SEVEN_ROWS, *steps, *where, *options])
    kept = {key: value.item() for key, value in trainer.callback_metrics.items()}
    if command == "fit":
        kept = trainer.lightning_module.memory_bank.committed["train", 0].tensors()
    Path(name).mkdir(exist_ok=True)
    torch.save(kept, f"{name}/{command}.rank{os.environ.get('RANK', 0)}.pt")


def run_commands(folder: Path) -> None:
    """Run the commands of a file in sequence in one process, because starting takes seconds."""
    silence_warnings()
    os.chdir(folder)
    for words in json.loads(Path("commands.json").read_text()):
        run_command(*words)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, processes) -> Path:
    """Train and measure with one, two and three processes; return the folder of the runs."""
    folder = tmp_path_factory.mktemp("uneven")
    write_lines(folder)
    of_each = {
        1: [["fit", "one", EIGHT], *measure("one")],
        2: [["fit", "two", *TWO], *measure("two", *TWO)],
        3: [
            *(["fit", "three", *THREE], *measure("three", *THREE)),
            *(["fit", "sharded", *SHARDED], measure("sharded", *SHARDED)[0]),
            ["fit", "two_three", *THREE, EIGHT, continue_from("two")],
            ["test", "broken", *THREE, continue_from("one").replace("last", "broken")],
        ],
    }
    for n_node, commands in of_each.items():
        (folder / "commands.json").write_text(json.dumps(commands))
        run_on_nodes(processes, n_node, __file__, folder)
        if n_node == 1:
            break_weights(folder / "one" / "version_0" / "checkpoints")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the order of the text is exact")
        patch.chdir(folder)
        run_command("fit", "three_one", EIGHT, continue_from("three"))
    return folder


def load_kept(folder: Path, name: str, command: str) -> list[dict]:
    """Return what each process has kept of a command, in the order of the ranks."""
    return [torch.load(file) for file in sorted((folder / name).glob(f"{command}.rank*.pt"))]


def list_logged(folder: Path, run: str, after: int = 0) -> list[float]:
    with (folder / run / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["step"]) >= after]
    return [float(row[name]) for row in rows for name in LOGGED if row[name]]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["two", "three", "sharded"])
def test_processes_with_uneven_rows_train_and_validate_like_one(runs, run):
    found = list_logged(runs, run)
    assert len(found) == 6 * 3 + 3 * 3
    assert found == pytest.approx(list_logged(runs, "one")[: len(found)], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["two", "three", "sharded"])
def test_processes_with_and_without_rows_measure_what_one_does(runs, run):
    [expected] = load_kept(runs, "one", "test")
    assert expected["test/nats"] > 1
    found = load_kept(runs, run, "test")
    assert len(found) == (2 if run == "two" else 3)
    assert all(measured == pytest.approx(expected, rel=1e-6) for measured in found)


@pytest.mark.slow
def test_processes_with_and_without_rows_measure_nats_that_are_no_numbers(runs):
    found = load_kept(runs, "broken", "test")
    assert len(found) == 3
    assert all(np.isnan(measured["test/nats"]) for measured in found)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["two", "three"])
def test_loss_by_position_is_measured_where_some_processes_have_no_rows(runs, run):
    path = runs / run / "version_0" / "checkpoints" / "last.ckpt"
    curve = torch.load(path, weights_only=False)[KEY]["nats_by_position"]
    assert [position for position, _ in curve] == [*range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["two", "three"])
def test_each_process_that_has_rows_writes_their_predictions(runs, run):
    expected_BT = np.load(runs / "one" / "nats.npy")
    files = sorted((runs / run).glob("nats.rank*.npy"))
    for row_T, file in zip(expected_BT, files, strict=True):
        [found_T] = np.load(file)
        scored_T = row_T[~np.isnan(row_T)]
        np.testing.assert_allclose(found_T[~np.isnan(found_T)], scored_T, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["two_three", "three_one"])
def test_a_run_continues_exactly_on_devices_that_share_its_rows_otherwise(runs, run):
    [expected] = load_kept(runs, "one", "fit")
    parts = load_kept(runs, run, "fit")
    memory_NBMD = torch.cat([part["h_NBMD"] for part in parts], dim=1)
    torch.testing.assert_close(memory_NBMD, expected["h_NBMD"], rtol=1e-6, atol=1e-8)
    assert list_logged(runs, run) == pytest.approx(list_logged(runs, "one", after=6), rel=1e-6)


if __name__ == "__main__":
    run_commands(Path(sys.argv[1]))
