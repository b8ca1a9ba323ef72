"""The job scripts of docs/slurm.md, run by SLURM itself on one node without GPUs."""

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.helpers.slurm import Slurm, explain_missing_slurm
from tests.helpers.waiting import wait_until

MISSING = explain_missing_slurm()
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(MISSING is not None, reason=f"program {MISSING}"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
JOB, ARRAY = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", PAGE, re.DOTALL)
PROGRAM = """#!{python}
# txl-lightning, with a small network, a small text, and without GPUs.
import sys
from txl_lightning.__main__ import main
sys.argv += {words}
sys.exit(main())
"""
SMALL = [
    "--model.net.n_layer=1", "--model.net.n_head=2", "--model.net.d_model=8",
    "--model.net.d_head=4", "--model.net.d_inner=8", "--model.net.mem_len=8",
    "--model.eval_mem_len=8", "--model.compile=false", "--data.path=letters.txt",
    "--data.data_dir=data", "--data.tgt_len=8", "--data.eval_tgt_len=8", "--data.batch_size=4",
    "--trainer.max_steps=1500", "--trainer.val_check_interval=500", "--trainer.limit_val_batches=2",
    "--trainer.log_every_n_steps=50", "--trainer.accelerator=cpu", "--trainer.precision=32-true",
    "--trainer.enable_progress_bar=false", "--report.html=false", "--report.sample_len=0",
]  # fmt: skip
MEASURED = ("train/seconds", "train/tokens_per_second", "train/peak_memory_bytes")
HOURS = 600  # seconds that jobs may take on a busy machine
NO_GPU = ("--gpus-per-node=0", "--cpus-per-task=1")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, processes) -> Iterator[Slurm]:
    slurm = Slurm(tmp_path_factory.mktemp("slurm"), processes)
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "txl-lightning"
    program.write_text(PROGRAM.format(python=sys.executable, words=SMALL))
    program.chmod(0o755)
    slurm.environment["PATH"] = f"{folder}:{slurm.environment['PATH']}"
    yield slurm
    slurm.end()


@pytest.fixture
def make_place(tmp_path, write_letters):
    """Return a folder with a text and a job script."""

    def make(name: str, script: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        write_letters(folder)
        (folder / "job.sh").write_text(script)
        return folder

    return make


def read_rows(run: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv, without what depends on the machine."""
    path = run / "metrics.csv"
    if not path.is_file():
        return []
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in rows]


def read_seed(run: Path) -> int:
    return yaml.safe_load((run / "config.yaml").read_text())["seed_everything"]


def wait_for_end(slurm: Slurm, folder: Path, *jobs: str) -> None:
    done = {"COMPLETED"}

    def has_ended() -> bool:
        states = [state for job in jobs for state in slurm.find_states(job)]
        assert "FAILED" not in states, read_logs(folder)
        return {*states} == done

    wait_until(has_ended, seconds=HOURS)


def read_logs(folder: Path) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.rglob("slurm-*.out")))


def test_a_requeued_job_of_two_tasks_continues_bit_for_bit(slurm, make_place):
    whole, stopped = (make_place(name, JOB) for name in ("whole", "stopped"))
    how = ("--ntasks-per-node=2", *NO_GPU, "job.sh")
    run = stopped / "runs" / "paper" / "enwik8_base" / "version_0"
    job = slurm.submit(stopped, *how)
    wait_until(lambda: read_rows(run), seconds=HOURS)
    # What --signal does before the time limit: to the tasks, not to the script.
    slurm.call("scancel", "--signal=USR1", job)
    other = slurm.submit(whole, *how)
    wait_for_end(slurm, stopped, job, other)
    log = read_logs(stopped)
    assert "--resume auto continues" in log
    assert "SIGTERM: this step" not in log
    assert "Restarts=1" in slurm.call("scontrol", "show", "job", job, "-o")
    expected = read_rows(whole / run.relative_to(stopped))
    assert len(expected) >= 30
    assert read_rows(run) == expected


def test_requeued_tasks_of_an_array_continue_their_own_runs_in_a_shared_folder(slurm, make_place):
    assert "/$SLURM_ARRAY_TASK_ID" in ARRAY
    folder = make_place("array", ARRAY.replace("/$SLURM_ARRAY_TASK_ID", ""))
    root = folder / "runs" / "seeds"
    job = slurm.submit(folder, *NO_GPU, "job.sh")
    signalled: set[int] = set()

    def signal_each_while_it_trains() -> bool:
        for run in root.glob("version_*"):
            if read_rows(run) and (seed := read_seed(run)) not in signalled:
                slurm.call("scancel", "--signal=USR1", f"{job}_{seed}")
                signalled.add(seed)
        return len(signalled) == 3

    wait_until(signal_each_while_it_trains, seconds=HOURS)
    wait_for_end(slurm, folder, job)
    log = read_logs(folder)
    assert log.count("--resume auto continues") == 3
    assert "changed" not in log
    runs = sorted(root.glob("version_*"))
    assert len(runs) == 3
    assert sorted(map(read_seed, runs)) == [1, 2, 3]
    steps = [[row["step"] for row in read_rows(run)] for run in runs]
    assert steps[0] == steps[1] == steps[2]
    assert len({*steps[0]}) == 30
