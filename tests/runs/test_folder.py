"""Which run of a folder a command with `resume` continues."""

import json
from pathlib import Path

import pytest

from txl_lightning.runs.folder import choose_run, name_job

JOB = {"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "train"}
ARRAY = {"SLURM_JOB_ID": "73", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}


def make_runs(root: Path, **jobs: object) -> None:
    """Make folders of runs, with the job in run.json unless it is None."""
    for name, job in jobs.items():
        (root / name).mkdir(parents=True)
        if job is not None:
            (root / name / "run.json").write_text(json.dumps({"job": job}))


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        (JOB, "77"),
        (ARRAY, "70_3"),
        (JOB | {"SLURM_JOB_NAME": "bash"}, None),
        (ARRAY | {"SLURM_JOB_NAME": "interactive"}, None),
    ],
)
def test_a_job_is_named_with_its_array_task_and_a_shell_is_no_job(monkeypatch, variables, job):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert name_job() == job


@pytest.mark.parametrize(
    ("variables", "chosen"),
    [
        ({}, "version_11"),
        (JOB, "version_3"),
        (JOB | {"SLURM_JOB_ID": "7"}, "version_11"),
        (ARRAY, "version_10"),
        # Not another task's, and not that of task 31 for task 3.
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "4"}, "version_9"),
        (ARRAY | {"SLURM_ARRAY_JOB_ID": "7"}, "version_11"),
    ],
)
def test_a_job_continues_its_latest_run_and_else_the_latest_of_no_other_task(
    tmp_path, monkeypatch, variables, chosen
):
    make_runs(tmp_path, version_2="77", version_3="77", version_9=None, version_10="70_3")
    make_runs(tmp_path, version_11="70_31")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert choose_run(tmp_path) == tmp_path / chosen


@pytest.mark.parametrize("job", [5, ["77"], {}, ""])
def test_a_run_json_of_another_tool_is_of_no_job(tmp_path, monkeypatch, job):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    make_runs(tmp_path, version_0="77", version_1=job)
    (tmp_path / "version_1" / "run.json").write_text(json.dumps([job]))
    assert choose_run(tmp_path) == tmp_path / "version_0"


def test_the_tasks_of_an_array_that_have_no_run_yet_continue_none(tmp_path, monkeypatch):
    for name, value in ARRAY.items():
        monkeypatch.setenv(name, value)
    make_runs(tmp_path, version_0="70_1", version_1="70_2")
    assert choose_run(tmp_path) is None
