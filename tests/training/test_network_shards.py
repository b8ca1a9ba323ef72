"""The package's other networks train with two processes as with one."""

import csv
import json
import os
import sys
from pathlib import Path

import pytest

from tests.helpers.nodes import run_on_nodes
from tests.helpers.state_networks import SIZES, SMALL_NETWORKS
from txl_lightning.errors import silence_warnings
from txl_lightning.training.cli import run_trainer

COMMON = [
    "--data.path=letters.txt", "--data.data_dir=data", "--data.vocab=bytes",
    # In the last segment of a pass, of two tokens, no unit ends.
    "--data.tgt_len=4", "--data.batch_size=100", "--trainer.max_epochs=2",
    "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--report.html=false",
    "--trainer.log_every_n_steps=1", "--plan.minutes=null",
    # Partial sums round differently from one. In float32, training of a GatedDeltaNet with heads as
    # small as these makes 1% of that (docs/engineering-log.md).
    "--trainer.precision=64-true",
]  # fmt: skip
DEVICES = {
    "one": [],
    "ddp": ["--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=ddp"],
    "fsdp2": ["--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=fsdp2"],
}
SEGMENTS = (1, 2)


def list_commands(strategy: str) -> list[list[str]]:
    """Return the commands that train each network with a strategy."""
    commands = []
    for name in SMALL_NETWORKS:
        net = {"class_path": name} | SIZES | SMALL_NETWORKS[name]
        for n_segment in SEGMENTS:
            words = [f"--model.net={json.dumps(net)}", f"--model.gradient_segments={n_segment}"]
            words += [f"--trainer.default_root_dir={strategy}_{name}_{n_segment}"]
            commands.append(["fit", *COMMON, *words, *DEVICES[strategy]])
    return commands


def run_commands(folder: Path) -> None:
    """Run the commands of a file in sequence in one process, because starting takes seconds."""
    silence_warnings()
    os.chdir(folder)
    for words in json.loads(Path("commands.json").read_text()):
        run_trainer(words)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, write_letters, processes) -> Path:
    """Train all networks with one and two processes; return the folder of the runs."""
    folder = write_letters(tmp_path_factory.mktemp("networks")).parent
    for strategy in DEVICES:
        (folder / "commands.json").write_text(json.dumps(list_commands(strategy)))
        run_on_nodes(processes, 1 if strategy == "one" else 2, __file__, folder)
    return folder


def list_nats(run: Path) -> list[float]:
    with (run / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [float(row[name]) for row in rows for name in ("train/nats", "val/nats") if row[name]]


@pytest.mark.slow
@pytest.mark.parametrize("n_segment", SEGMENTS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_two_processes_train_as_one_does_over_a_pass(runs, name, strategy, n_segment):
    expected = list_nats(runs / f"one_{name}_{n_segment}")
    assert len(expected) > 10
    assert list_nats(runs / f"{strategy}_{name}_{n_segment}") == pytest.approx(expected, rel=1e-6)


if __name__ == "__main__":
    run_commands(Path(sys.argv[1]))
