"""Runs that meet with accidents, and what is compared afterwards."""

import contextlib
import csv
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

HERE = Path(__file__).parent
DEADLINE = 30.0
"""Seconds from a signal or a death to the end of the last process."""

LAUNCHERS = {
    "lightning": [],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
}
"""What is between python and its script, to have two processes."""

SMALL = [
    "--model.net.n_layer=2", "--model.net.n_head=2", "--model.net.d_model=8",
    "--model.net.mem_len=12", "--model.net.dropout=0.2", "--model.net.dropatt=0.1",
    "--data.path=letters.txt", "--data.data_dir=data", "--data.tgt_len=8", "--data.batch_size=4",
    "--trainer.max_steps=40", "--trainer.val_check_interval=10", "--trainer.limit_val_batches=3",
    "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=4",
    "--trainer.enable_progress_bar=false", "--checkpoint.every_n_steps=7",
    "--report.html=false", "--report.sample_len=0",
]  # fmt: skip


@dataclass
class Ended:
    """What became of a run."""

    codes: list[int]
    output: str
    seconds: float = 0.0
    """From a moment in the run that the test has waited for to the end of the last process."""

    def __post_init__(self) -> None:
        self.code = self.codes[0]


@dataclass
class Place:
    """A folder in which runs are started, one after the other."""

    folder: Path
    server: Any
    started: list[Any] = field(default_factory=list)
    small: tuple[str, ...] = tuple(SMALL)
    driver: tuple[str, ...] = (sys.executable, str(HERE / "driver.py"))

    def __post_init__(self) -> None:
        letters = np.random.default_rng(0).integers(97, 123, 6000).astype(np.uint8)
        # Lines, for orders that shuffle them; passes are short, so that runs see several.
        letters[::17] = ord("\n")
        (self.folder / "letters.txt").write_bytes(letters[:1500].tobytes())
        self.mark = uuid.uuid4().hex

    def fit(self, *options: str, fault: str = "", ranks: int = 1, **settings: str) -> Ended:
        """Run fit to its end, in as many processes as there are ranks."""
        return self.end(self.fork("fit", *SMALL, *options, fault=fault, ranks=ranks, **settings))

    def fork(self, *arguments: str, fault: str = "", ranks: int = 1, **settings: str) -> list[Any]:
        """Start a command line in as many processes as there are ranks."""
        import driver

        settings = self.settings(fault, settings)
        if ranks > 1:
            port = str(free_port())
            settings |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
            settings |= {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}
            settings |= {"LOCAL_WORLD_SIZE": str(ranks)}
            arguments = (*arguments, f"--trainer.devices={ranks}", "--trainer.strategy=ddp")
        processes = []
        for rank in range(ranks):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            given = (list(arguments), settings | of_rank, self.folder, self.log)
            processes.append(self.server.Process(target=driver.forked, args=given, daemon=True))
            processes[-1].start()
        self.started += processes
        return processes

    def end(self, processes: list[Any], since: float | None = None, timeout: float = 120) -> Ended:
        """Wait for forked processes."""
        since = since or time.monotonic()
        stop = time.monotonic() + timeout
        for process in processes:
            process.join(max(stop - time.monotonic(), 0.1))
        seconds = time.monotonic() - since
        codes = [process.exitcode for process in processes]
        assert None not in codes, f"not over after {timeout} s:\n{self.log.read_text()}"
        return Ended(codes, self.said(), seconds)

    def launch(self, *arguments: str, fault: str = "", **settings: str) -> subprocess.Popen:
        """Start a command line as a user does; its own launcher may start more processes."""
        options = {"cwd": self.folder, "start_new_session": True}
        environment = {**os.environ, **self.settings(fault, settings)}
        with self.log.open("ab") as file:
            process = subprocess.Popen(
                arguments, stdout=file, stderr=file, env=environment, **options
            )
        self.started.append(process)
        return process

    def launch_two(self, launcher: str, fault: str = "", **settings: str) -> subprocess.Popen:
        """Start fit in two processes as a user does."""
        python, script = self.driver
        two = ["--trainer.devices=2", "--trainer.strategy=ddp"]
        command = [python, *LAUNCHERS[launcher], script, "fit", *SMALL, *two]
        return self.launch(*command, fault=fault, **settings)

    def wait(
        self, process: subprocess.Popen, since: float | None = None, timeout: float = 240
    ) -> Ended:
        """Wait for a command line, and for all that it started."""
        since = since or time.monotonic()
        code = process.wait(timeout)
        while self.alive() and time.monotonic() - since < DEADLINE:
            time.sleep(0.05)
        return Ended([code], self.said(), time.monotonic() - since)

    def settings(self, fault: str, given: dict[str, str]) -> dict[str, str]:
        """The environment of a run."""
        path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        ours = {"FAULT": fault, "LOSSES": "losses", "MARK": self.mark, "PYTHONPATH": path}
        return ours | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder)} | given

    def alive(self) -> list[int]:
        """The processes that were launched here, or by those, and have not ended."""
        mark, found = f"MARK={self.mark}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def wait_for_step(self, step: int, timeout: float = 120) -> float:
        """Wait until every rank has taken a step; the time it was."""
        stop = time.monotonic() + timeout
        while not any(line["step"] >= step for line in self.lines()):
            assert time.monotonic() < stop, self.log.read_text()
            time.sleep(0.02)
        return time.monotonic()

    @property
    def log(self) -> Path:
        """What was printed by the runs that are not over."""
        return self.folder / "log"

    def said(self) -> str:
        """What the run that is over printed."""
        self.log.touch()
        output = self.log.read_text(errors="replace")
        self.log.unlink()
        return output

    def lines(self) -> list[dict[str, Any]]:
        """What was recorded; the last line may be cut."""
        path = self.folder / "losses"
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in whole]

    def losses(self) -> dict[tuple[int, int], str]:
        """The loss of each rank and batch; one that was taken twice must be the same twice."""
        found: dict[tuple[int, int], str] = {}
        for line in self.lines():
            assert found.setdefault((line["rank"], line["batch"]), line["loss"]) == line["loss"]
        return found

    def tokens(self) -> dict[int, list[list[int]]]:
        """The rows of each batch, of all ranks in their order."""
        parts = {(line["batch"], line["rank"]): line["tokens"] for line in self.lines()}
        found: dict[int, list[list[int]]] = {}
        for batch, rank in sorted(parts):
            found.setdefault(batch, []).extend(parts[batch, rank])
        return found

    def newest(self, name: str = "last.ckpt") -> Path:
        """The checkpoint of the latest run."""
        runs = (self.folder / "runs").glob(f"version_*/checkpoints/{name}")
        return max(runs, key=lambda path: int(path.parts[-3].removeprefix("version_")))

    def held(self) -> dict[str, Any]:
        """What decides how training goes on from there."""
        checkpoint = torch.load(self.newest(), weights_only=True)
        parts = ("state_dict", "optimizer_states", "lr_schedulers", "txl_lightning", "global_step")
        position = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
        return {name: checkpoint[name] for name in parts} | {"position": position}

    def logged(self) -> dict[tuple[str, str], str]:
        """What the latest run has logged: the text of a value by its step and name."""
        with (self.newest().parents[1] / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        names = ("train/nats", "train/grad_norm", "train/lr", "train/tokens_seen", "val/nats")
        return {(row["step"], name): row[name] for row in rows for name in names if row[name]}

    def clear(self) -> None:
        """End what a failed test has left."""
        for process in self.started:
            process.kill()
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Where two values of plain types and tensors are not equal, bit by bit."""
    if type(a) is not type(b):
        return [f"{where}: {type(a)} {type(b)}"]
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{where}: {a.keys() ^ b.keys()}"]
        return [each for key in a for each in differences(a[key], b[key], f"{where}/{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{where}: {len(a)} {len(b)}"]
        pairs = enumerate(zip(a, b, strict=True))
        return [each for n, (x, y) in pairs for each in differences(x, y, f"{where}/{n}")]
    return [] if a == b else [f"{where}: {a} {b}"]


@pytest.fixture(scope="session")
def server():
    """Forks processes that have imported all that a run needs."""
    sys.path.insert(0, str(HERE))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["txl_lightning.training.cli", "torch._dynamo"])
    yield context
    sys.path.remove(str(HERE))


@pytest.fixture
def make_place(tmp_path, server):
    """Make a folder for runs."""
    places = []

    def make(name: str) -> Place:
        (tmp_path / name).mkdir()
        places.append(Place(tmp_path / name, server))
        return places[-1]

    yield make
    for place in places:
        place.clear()


@pytest.fixture
def place(make_place) -> Place:
    """A folder for runs."""
    return make_place("place")


@pytest.fixture
def same():
    """Fail unless a run without accidents and another one have come to the same."""

    def compare(one: Place, other: Place, every_row: bool = True) -> None:
        assert one.losses() == other.losses()
        assert differences(one.held(), other.held()) == []
        assert other.logged().items() <= one.logged().items()
        assert not every_row or len(other.logged()) == len(one.logged())

    return compare
