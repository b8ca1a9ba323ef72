"""Runs with faults, and the comparison of their results."""

import csv
import functools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port

from tests.helpers.waiting import wait_until

HERE = Path(__file__).parent
LIMIT = 600.0  # seconds that a run may take
DEADLINE = 30.0  # seconds from a signal or a killed process to the end of the last process

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
TWO_PROCESSES = ("--trainer.devices=2", "--trainer.strategy=ddp")

FIT = (
    "fit",
    "--model.net.n_layer=2", "--model.net.n_head=2", "--model.net.d_model=8",
    "--model.net.mem_len=12", "--model.net.dropout=0.2", "--model.net.dropatt=0.1",
    "--data.path=letters.txt", "--data.data_dir=data", "--data.tgt_len=8", "--data.batch_size=4",
    "--trainer.max_steps=40", "--trainer.val_check_interval=10", "--trainer.limit_val_batches=3",
    "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=4",
    "--trainer.enable_progress_bar=false", "--checkpoint.every_n_steps=7",
    "--report.html=false", "--report.sample_len=0",
)  # fmt: skip
STATE = ("state_dict", "optimizer_states", "lr_schedulers", "txl_lightning", "global_step")


class Ended(NamedTuple):
    """Exit codes and output of a run; seconds since the event that the test waited for."""

    codes: list[int]
    output: str
    seconds: float

    @property
    def code(self) -> int:
        return self.codes[0]


class Place:
    """A folder in which runs are started one after the other."""

    def __init__(self, folder: Path, server: Any, processes: Any) -> None:
        self.folder = folder
        self.server = server
        self.log = folder / "log"
        self.processes = type(processes)()
        self.forked = []
        self.alive = self.processes.alive
        self.options = FIT[1:]
        letters = np.random.default_rng(0).integers(97, 123, 1500).astype(np.uint8)
        # Lines, for orders that shuffle them; passes are short, so that runs have several.
        letters[::17] = ord("\n")
        (folder / "letters.txt").write_bytes(letters.tobytes())

    def fit(self, *options: str, fault: str = "", ranks: int = 1, **environment: str) -> Ended:
        """Run fit to its end, in one process per rank."""
        return self.end(self.fork(*options, fault=fault, ranks=ranks, **environment))

    def fork(self, *options: str, command=FIT, fault="", ranks=1, **environment: str) -> list:
        """Start a command in one process per rank, without a launcher."""
        import driver

        environment = self.settings(fault) | environment
        arguments = [*command, *options]
        if ranks > 1:
            world = {"MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0"}
            world |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
            environment |= world | {"MASTER_PORT": str(find_free_network_port())}
            environment["TORCHELASTIC_RUN_ID"] = "none"
            arguments += TWO_PROCESSES
        processes = []
        for rank in map(str, range(ranks)):
            own = {"RANK": rank, "LOCAL_RANK": rank} if ranks > 1 else {}
            values = (arguments, environment | own, self.folder, self.log)
            processes.append(self.server.Process(target=driver.forked, args=values, daemon=True))
            processes[-1].start()
        self.forked += processes
        return processes

    def launch(
        self, *options, before=(), launcher="", command=FIT, fault="", **environment: str
    ) -> subprocess.Popen:
        """Start a command line as a user does; a launcher starts two processes."""
        words = [*before, sys.executable, *(TORCHRUN if launcher == "torchrun" else ())]
        words += [str(HERE / "driver.py"), *command, *options, *(TWO_PROCESSES if launcher else ())]
        environment = {**os.environ, **self.settings(fault), **environment}
        with self.log.open("ab") as file:
            return self.processes.start(
                words, env=environment, cwd=self.folder, stdout=file, stderr=file
            )

    def end(
        self, started: list | subprocess.Popen, since: float | None = None, alone: bool = True
    ) -> Ended:
        """Wait for processes and their children, unless other processes are running."""
        since = since or time.monotonic()
        stop = time.monotonic() + LIMIT
        is_forked = isinstance(started, list)
        poll = (lambda each: each.exitcode) if is_forked else (lambda each: each.poll())
        processes = started if is_forked else [started]
        while None in (codes := [poll(each) for each in processes]) and time.monotonic() < stop:
            time.sleep(0.01)
        if None in codes:
            self.clear()
        assert None not in codes, f"it does not end:\n{self.log.read_text(errors='replace')}"
        while alone and self.alive() and time.monotonic() - since < DEADLINE:
            time.sleep(0.05)
        output = self.log.read_text(errors="replace")
        if alone:
            # The next run begins another one.
            self.log.unlink()
        return Ended(codes, output, time.monotonic() - since)

    def settings(self, fault: str) -> dict[str, str]:
        path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        ours = {"FAULT": fault, "LOSSES": "losses", "PYTHONPATH": path}
        return ours | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder)}

    def wait_for_step(self, step: int) -> float:
        """Wait until a rank has taken a step; return the time."""
        wait_until(lambda: any(line["step"] >= step for line in self.lines()))
        return time.monotonic()

    def lines(self) -> list[dict[str, Any]]:
        """Return the recorded lines; the last one may be incomplete."""
        path = self.folder / "losses"
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in whole]

    def losses(self) -> dict[tuple[int, int], str]:
        """Return the loss of each rank and batch; a repeated one must be equal."""
        losses: dict[tuple[int, int], str] = {}
        for line in self.lines():
            assert losses.setdefault((line["rank"], line["batch"]), line["loss"]) == line["loss"]
        return losses

    def mean_losses(self) -> list[float]:
        """Return the loss of each batch: the mean over ranks, as in DDP."""
        of_ranks: dict[int, list[float]] = {}
        for line in self.lines():
            of_ranks.setdefault(line["batch"], []).append(float.fromhex(line["loss"]))
        return [sum(losses) / len(losses) for _, losses in sorted(of_ranks.items())]

    def forget(self) -> None:
        """Remove all runs and their records."""
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        (self.folder / "losses").unlink(missing_ok=True)

    def tokens(self) -> dict[int, list[list[int]]]:
        """Return the rows of each batch, of all ranks in order."""
        tokens: dict[int, list[list[int]]] = {}
        for line in sorted(self.lines(), key=lambda line: (line["batch"], line["rank"])):
            tokens.setdefault(line["batch"], []).extend(line["tokens"])
        return tokens

    def path(self, name: str = "last.ckpt") -> Path:
        """Return a checkpoint of the latest run that has one."""
        runs = (self.folder / "runs").glob(f"version_*/checkpoints/{name}")
        return max(runs, key=lambda path: int(path.parts[-3].removeprefix("version_")))

    def state(self) -> dict[str, Any]:
        """Return the state from which last.ckpt continues training."""
        checkpoint = torch.load(self.path(), weights_only=True)
        # It depends on how often the run was interrupted.
        assert checkpoint["txl_lightning"].pop("seconds") > 0
        return {name: checkpoint[name] for name in STATE} | {"trained": checkpoint.get("trained")}

    def logged(self) -> dict[tuple[str, str], str]:
        """Return the text of every logged value by step and name; each is logged once."""
        with (self.path().parents[1] / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        names = ("train/nats", "train/grad_norm", "train/lr", "train/tokens_seen", "val/nats")
        cells = [((row["step"], name), row[name]) for row in rows for name in names if row[name]]
        assert len(cells) == len(dict(cells))
        return dict(cells)

    def assert_same(self, whole: "Place", every_row: bool = True) -> None:
        """Require that this run has the same results as another one, to the last bit."""
        assert self.losses() == whole.losses()
        assert dump(self.state()) == dump(whole.state())
        assert self.logged().items() <= whole.logged().items()
        assert not every_row or len(self.logged()) == len(whole.logged())

    def clear(self) -> None:
        """End the processes of a failed test, which first print their stacks into the log."""
        left = [process for process in self.forked if process.is_alive()]
        for process in left:
            os.kill(process.pid, signal.SIGABRT)
        for process in left:
            process.join(5)
            process.kill()
        self.processes.end()


def dump(state: dict[str, Any]) -> str:
    """Return a state as text, without losing a bit."""
    return json.dumps(state, default=lambda array: [str(array.dtype), array.tolist()])


@pytest.fixture(scope="session")
def count():
    """Return how often an attack is tried: a few times, or the full number with ATTACKS=full."""
    return lambda few, full: full if os.environ.get("ATTACKS") == "full" else few


@pytest.fixture(scope="session")
def server():
    """Forks processes that have already imported everything."""
    sys.path.insert(0, str(HERE))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["txl_lightning.training.cli", "torch._dynamo"])
    yield context
    sys.path.remove(str(HERE))


@pytest.fixture(scope="session")
def whole(tmp_path_factory, server, processes):
    """Return the place of a run without faults, by its options; each runs once."""

    @functools.cache
    def run(*options: str, ranks: int = 1) -> Place:
        place = Place(tmp_path_factory.mktemp("whole"), server, processes)
        ended = place.fit(*options, ranks=ranks)
        assert set(ended.codes) == {0}, ended.output
        return place

    return run


@pytest.fixture
def place(tmp_path, server, processes):
    """A folder for a run with faults."""
    (tmp_path / "place").mkdir()
    place = Place(tmp_path / "place", server, processes)
    yield place
    place.clear()


@pytest.fixture
def finish(place, whole):
    """Resume the run; require that it ends bit-identical to one without faults."""

    def run(*options: str, ranks: int = 1, every_row: bool = True) -> Ended:
        ended = place.fit("--resume=auto", *options, ranks=ranks)
        assert set(ended.codes) == {0}, ended.output
        assert "resume: runs/version_" in ended.output
        place.assert_same(whole(*options, ranks=ranks), every_row)
        return ended

    return run
