"""Fixtures of several folders of tests."""

import io
import json
import os
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch
from jsonargparse import Namespace

from txl_lightning import CorpusDataModule, TransformerXL, TransformerXLConfig
from txl_lightning import __main__ as entry
from txl_lightning.errors import IGNORED_WARNINGS
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
# The networks are too small for several threads, which would wait for busy cores.
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
    config.addinivalue_line("filterwarnings", f"ignore:{IGNORED_WARNINGS}")


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


def write_letters(folder: Path) -> Path:
    path = folder / "letters.txt"
    path.write_bytes(np.random.default_rng(0).integers(97, 123, 6000).astype(np.uint8).tobytes())
    return path


@pytest.fixture
def text_file(tmp_path) -> Path:
    """A text of 26 letters, long enough for a few passes."""
    return write_letters(tmp_path)


@pytest.fixture
def make_data(text_file):
    def make(**changes) -> CorpusDataModule:
        options = {"path": str(text_file), "data_dir": str(text_file.parent / "data")}
        return CorpusDataModule(**options | {"tgt_len": 8, "batch_size": 4} | changes)

    return make


@pytest.fixture
def make_net():
    """A small float64 network in eval mode; every parameter differs from its initial value."""

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
    """The folder of a finished run; tests must not modify it."""
    folder = tmp_path_factory.mktemp("finished")
    where = [f"--data.path={write_letters(folder)}", f"--data.data_dir={folder / 'data'}"]
    where += [f"--trainer.default_root_dir={folder}"]
    entry.run(["fit", *sizes, "--report.html=true", "--report.sample_len=20", *where])
    return folder / "version_0"


@pytest.fixture
def txl(monkeypatch, capsys, tmp_path, text_file):
    """Run a command line in an empty folder; return its exit code and its output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["txl-lightning", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            entry.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr()

    return run


@pytest.fixture
def refused(txl):
    """Run an invalid command line; return its exit code and its one-line error."""

    def run(*arguments) -> tuple[int, str]:
        code, output = txl(*arguments)
        [line] = output.err.splitlines()
        return code, line.removeprefix("error: ").replace(f"{Path.cwd()}/", "")

    return run


@pytest.fixture
def small(sizes, text_file):
    return [*sizes, f"--data.path={text_file}"]


@pytest.fixture(scope="session")
def parse_fit():
    """Parse and check arguments of fit, with a parser built once, which takes a second."""
    entry.limit_yaml()
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


def read_records(path: Path) -> Iterator:
    """Read the messages of a .wandb file, which is in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, parts = path.read_bytes(), b""
    for start in range(0, len(data), BLOCK):
        block, at = data[start : start + BLOCK], 0 if start else 7
        while at + HEADER.size <= len(block):
            _, count, kind = HEADER.unpack_from(block, at)
            at += HEADER.size + count
            parts += block[at - count : at]
            # A complete record, or the last part of one.
            if kind in (1, 4):
                yield Record.FromString(parts)
                parts = b""


def decode_items(entries) -> dict:
    return {e.key or "/".join(e.nested_key): json.loads(e.value_json) for e in entries}


class Run:
    """The data of an offline run of W&B."""

    def __init__(self, path: Path) -> None:
        stored = defaultdict(list)
        for record in read_records(path):
            kind = record.WhichOneof("record_type")
            stored[kind].append(getattr(record, kind))
        first = stored["run"][0]
        self.id, self.project = first.run_id, first.project
        self.rows = [decode_items(row.item) for row in stored["history"]]
        updates = [first.config.update, *(config.update for config in stored["config"])]
        self.config = decode_items(chain.from_iterable(updates))
        self.summary = decode_items(chain.from_iterable(each.update for each in stored["summary"]))
        self.metrics = {metric.name or metric.glob_name: metric for metric in stored["metric"]}
        self.artifacts = stored["artifact"]


@pytest.fixture(scope="session")
def fit_with_wandb(sizes, repository):
    """Train in a separate process; return it, and W&B's runs in its folder, oldest first."""

    def fit(folder: Path, *options: str, **environment: str) -> tuple[CompletedProcess, list[Run]]:
        (folder / "letters.txt").write_bytes(bytes(range(97, 123)) * 200)
        command = [sys.executable, "-m", "txl_lightning", "fit", *sizes]
        command += ["--data.path=letters.txt", "--trainer.logger=WandbLogger"]
        command += ["--report.html=true", "--report.sample_len=200", *options]
        # Variables that W&B set in this process would send the run to another folder.
        env = {name: value for name, value in os.environ.items() if "WANDB" not in name}
        env |= {"PYTHONPATH": str(repository), "WANDB_SILENT": "true"} | environment
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=240
        )
        paths = folder.glob("runs/wandb/offline-run-*/run-*.wandb")
        return done, [Run(path) for path in sorted(paths, key=os.path.getmtime)]

    return fit


@pytest.fixture(scope="session")
def offline_run(tmp_path_factory, fit_with_wandb) -> tuple[Path, Run]:
    """The folder of a finished run with W&B offline, and the data of W&B; not to be modified."""
    folder = tmp_path_factory.mktemp("offline")
    done, [run] = fit_with_wandb(folder, "--wandb.checkpoints=all", WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    return folder, run
