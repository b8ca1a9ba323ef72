"""On SIGUSR1, SLURM's warning of the time limit, a job saves, requeues itself and exits."""

import os

import pytest

pytestmark = pytest.mark.faults

JOB = {
    "SLURM_JOB_ID": "77", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0", "SLURM_JOB_NAME": "train",
}  # fmt: skip
ARRAY = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.fixture
def fit(place):
    """Run fit in a job; return the ended run and the arguments of scontrol.

    This scontrol records its arguments, and ends the job as a requeue does.
    """
    (place.folder / "bin").mkdir()
    (place.folder / "bin" / "scontrol").write_text(
        '#!/bin/sh\necho "$@" >> scontrol.log\nkill $PPID\n'
    )
    (place.folder / "bin" / "scontrol").chmod(0o755)
    path = f"{place.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def run(fault, **environment):
        ended = place.fit("--resume=auto", fault=fault, **JOB | {"PATH": path} | environment)
        log = place.folder / "scontrol.log"
        return ended, log.read_text().splitlines() if log.exists() else []

    return run


def test_usr1_saves_and_queues_the_job_again_which_continues_exactly(place, finish, fit):
    for n, (where, step) in enumerate({"12": 12, "val": 20}.items()):
        ended, scontrol_calls = fit(f"USR1:{where}")
        assert (ended.code, scontrol_calls) == (143, ["requeue 77"] * (n + 1)), ended.output
        assert "SIGTERM" not in ended.output
        assert place.state()["global_step"] == step
    finish()


@pytest.mark.parametrize(
    ("fault", "environment", "code", "requests"),
    [
        ("USR1", ARRAY, 143, ["requeue 70_3"]),
        # The job is cancelled.
        ("TERM", {}, 143, []),
        # An interactive shell.
        ("USR1", {"SLURM_JOB_NAME": "bash"}, 0, []),
    ],
    ids=["array", "cancelled", "interactive"],
)
def test_job_is_queued_by_its_number_if_it_may_be(fit, fault, environment, code, requests):
    ended, scontrol_calls = fit(f"{fault}:12", **environment)
    assert (ended.code, scontrol_calls) == (code, requests)
    assert "saved after step 12" in ended.output


@pytest.mark.parametrize("scontrol", ["#!/bin/sh\nexit 1\n", None])
def test_job_that_cannot_be_requeued_is_saved_with_a_warning(place, fit, scontrol):
    path = place.folder / "bin" / "scontrol"
    path.write_text(scontrol) if scontrol else path.unlink()
    ended, _ = fit("USR1:12")
    assert ended.code == 143
    assert "job 77 cannot be requeued" in ended.output
    assert "submit it again, and `--resume auto` continues" in ended.output
    assert place.state()["global_step"] == 12
