"""SLURM warns with SIGUSR1 that a job's time is over: it saves, queues itself again and leaves."""

import os

import pytest

pytestmark = pytest.mark.faults

COMMAND = ["--resume=auto"]
JOB = {
    "SLURM_JOB_ID": "77", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0", "SLURM_JOB_NAME": "train",
}  # fmt: skip


@pytest.fixture
def job(place) -> dict[str, str]:
    """The environment of a job, on a machine whose scontrol writes down what it is asked."""
    programs = place.folder / "bin"
    programs.mkdir()
    (programs / "scontrol").write_text('#!/bin/sh\necho "$@" >> scontrol.log\n')
    (programs / "scontrol").chmod(0o755)
    return JOB | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def asked(place) -> list[str]:
    path = place.folder / "scontrol.log"
    return path.read_text().splitlines() if path.exists() else []


def test_its_warning_saves_and_queues_the_job_again_which_goes_on_exactly(
    make_place, place, same, job
):
    ended = place.fit(*COMMAND, fault="USR1:12", **job)
    assert ended.code == 143, ended.output
    assert asked(place) == ["requeue 77"]
    assert place.held()["global_step"] == 12
    ended = place.fit(*COMMAND, fault="USR1:val", **job)
    assert (ended.code, asked(place)) == (143, ["requeue 77"] * 2)
    assert place.held()["global_step"] == 20
    assert place.fit(*COMMAND, **job).code == 0
    whole = make_place("whole")
    assert whole.fit().code == 0
    same(whole, place)


def test_a_job_of_an_array_is_queued_by_its_number_in_it(place, job):
    array = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}
    assert place.fit(*COMMAND, fault="USR1:12", **job, **array).code == 143
    assert asked(place) == ["requeue 70_3"]


def test_to_be_cancelled_does_not_queue_it_again(place, job):
    assert place.fit(*COMMAND, fault="TERM:12", **job).code == 143
    assert asked(place) == []
    assert place.held()["global_step"] == 12


@pytest.mark.parametrize("scontrol", ["#!/bin/sh\nexit 1\n", None])
def test_what_cannot_be_queued_is_said_and_saved_all_the_same(place, job, scontrol):
    path = place.folder / "bin" / "scontrol"
    path.write_text(scontrol) if scontrol else path.unlink()
    ended = place.fit(*COMMAND, fault="USR1:12", **job)
    assert ended.code == 143
    assert "job 77 cannot be requeued" in ended.output
    assert "run: scontrol requeue 77" in ended.output
    assert place.held()["global_step"] == 12


def test_in_an_interactive_shell_of_slurm_it_only_saves(place, job):
    ended = place.fit(*COMMAND, fault="USR1:12", **job | {"SLURM_JOB_NAME": "bash"})
    assert (ended.code, asked(place)) == (0, [])
