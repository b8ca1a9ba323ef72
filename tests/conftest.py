"""What several tests start from."""

import io
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonargparse import Namespace

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning import __main__ as door
from txl_lightning.__main__ import IGNORED_WARNINGS
from txl_lightning.training.cli import TxlCLI

SMALL = [
    "--model.net.n_layer=1", "--model.net.n_head=2", "--model.net.d_model=8",
    "--model.net.mem_len=8", "--data.tgt_len=8", "--data.batch_size=4", "--trainer.max_steps=4",
    "--trainer.val_check_interval=2", "--trainer.limit_val_batches=2",
    "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1",
    "--report.html=false", "--report.sample_len=0",
]  # fmt: skip
BLOCK, HEADER = 32768, struct.Struct("<IHB")

os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
os.environ.setdefault("WANDB_MODE", "offline")
# Networks of the tests are too small to share; threads that wait for a busy core slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


STARTED = time.monotonic()
LEFT_OUT = "left out: past --time-limit"


def pytest_addoption(parser):
    parser.addoption("--time-limit", type=float, help="seconds after which no test is started")


def pytest_runtest_setup(item):
    limit = item.config.getoption("--time-limit")
    if limit is not None and time.monotonic() - STARTED > limit:
        pytest.skip(LEFT_OUT)


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    for report in (report for report in skipped if LEFT_OUT in str(report.longrepr)):
        terminalreporter.write_line(f"{LEFT_OUT}: {report.nodeid}")


def pytest_configure(config):
    for message in IGNORED_WARNINGS:
        config.addinivalue_line("filterwarnings", f"ignore:{message}")


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture
def text_file(tmp_path) -> Path:
    """A text of 26 letters, long enough for a few passes."""
    letters = np.random.default_rng(0).integers(97, 123, 6000).astype(np.uint8)
    path = tmp_path / "letters.txt"
    path.write_bytes(letters.tobytes())
    return path


@pytest.fixture
def make_net():
    """A small network in float64 and eval mode, whose every parameter is away from its start."""

    def make(**changes) -> TransformerXL:
        sizes = {"n_token": 11, "n_layer": 2, "n_head": 2, "d_model": 8, "mem_len": 6}
        net = TransformerXL(TransformerXLConfig(**sizes | changes)).double().eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return net

    return make


@pytest.fixture(scope="session")
def sizes() -> list[str]:
    """Options of fit: a small model and few steps."""
    return SMALL


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory, sizes) -> Path:
    """The folder of a finished run, to be read only."""
    folder = tmp_path_factory.mktemp("finished")
    text = folder / "letters.txt"
    text.write_bytes(np.random.default_rng(0).integers(97, 123, 6000).astype(np.uint8).tobytes())
    where = [f"--data.path={text}", f"--data.data_dir={folder / 'data'}"]
    told = ["--report.html=true", "--report.sample_len=20"]
    door.run(["fit", *sizes, *told, *where, f"--trainer.default_root_dir={folder}"])
    return folder / "version_0"


@pytest.fixture
def txl(monkeypatch, capsys, tmp_path, text_file):
    """Run a command line in an empty folder: its exit code, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["txl-lightning", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            door.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr()

    return run


@pytest.fixture
def small(sizes, text_file):
    return [*sizes, f"--data.path={text_file}"]


@pytest.fixture(scope="session")
def parse_fit():
    """Parse and check arguments of fit, by a parser built once: to build one takes a second."""
    cli = TxlCLI.__new__(TxlCLI)
    with pytest.raises(SystemExit), redirect_stdout(io.StringIO()):
        cli.__init__(["fit", "--print_config"])
    cli.subcommand = "fit"

    def parse(*arguments: str) -> Namespace:
        cli.arguments = ["fit", *map(str, arguments)]
        cli.config = cli.parse()
        cli.before_instantiate_classes()
        return cli.config.fit

    return parse


def records(path: Path) -> Iterator:
    """What a .wandb file holds: LevelDB's log format, of messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    while at < len(data):
        if BLOCK - at % BLOCK < HEADER.size:
            at += BLOCK - at % BLOCK
            continue
        _, count, kind = HEADER.unpack_from(data, at)
        parts += data[at + HEADER.size : at + HEADER.size + count]
        at += HEADER.size + count
        # A whole one, or the last part of one.
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def items(entries) -> dict:
    """Names and values."""
    return {
        entry.key or "/".join(entry.nested_key): json.loads(entry.value_json) for entry in entries
    }


def put(tree: dict, keys: list[str], value_json: str) -> None:
    """Put a value in its place."""
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = json.loads(value_json)


class Run:
    """A run without a network."""

    def __init__(self, path: Path) -> None:
        self.rows, self.config, self.metrics, self.artifacts = [], {}, {}, []
        self.summary: dict = {}
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.id, self.project = record.run.run_id, record.run.project
                self.config |= items(record.run.config.update)
            elif kind == "history":
                self.rows.append(items(record.history.item))
            elif kind == "config":
                self.config |= items(record.config.update)
            elif kind == "summary":
                for entry in record.summary.update:
                    put(self.summary, list(entry.nested_key) or [entry.key], entry.value_json)
            elif kind == "artifact":
                self.artifacts.append(record.artifact)
            elif kind == "metric":
                self.metrics[record.metric.name or record.metric.glob_name] = record.metric


@pytest.fixture(scope="session")
def wandb_runs():
    """What W&B was told in a folder without a network: its runs, oldest first."""

    def read(folder: Path) -> list[Run]:
        found = folder.glob("runs/wandb/offline-run-*/run-*.wandb")
        return [Run(path) for path in sorted(found, key=os.path.getmtime)]

    return read


@pytest.fixture(scope="session")
def offline_run(tmp_path_factory, sizes, repository, wandb_runs) -> tuple[Path, Run]:
    """The folder of a finished run with W&B offline, and what W&B was told; to be read only."""
    folder = tmp_path_factory.mktemp("offline")
    (folder / "letters.txt").write_bytes(bytes(range(97, 123)) * 200)
    command = [sys.executable, "-m", "txl_lightning", "fit", *sizes]
    command += ["--data.path=letters.txt", "--trainer.logger=WandbLogger"]
    command += ["--report.html=true", "--report.sample_len=200", "--wandb.checkpoints=all"]
    # What W&B sets in a process that has used it would send the run to that one's folder.
    known = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    known |= {"PYTHONPATH": str(repository), "WANDB_MODE": "offline"}
    subprocess.run(command, env=known, cwd=folder, check=True, capture_output=True, timeout=240)
    [run] = wandb_runs(folder)
    return folder, run
