"""Full, read-only and removed disks, and processes that die while they write."""

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from txl_lightning.checkpoints.loading import find_latest
from txl_lightning.checkpoints.saving import read_manifest, verify_checkpoint

pytestmark = pytest.mark.faults

SHM = Path("/dev/shm")


def can_mount() -> bool:
    """Return True if this process can mount a file system (root on Linux)."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not SHM.is_dir(), reason="no second file system")
def test_kills_during_saves_leave_no_truncated_file(place, finish, count):
    """$TMPDIR is on another file system; there, Lightning's own saving truncated files."""
    n_kill = count(8, 25)
    options = ["--checkpoint.every_n_steps=1", f"--trainer.max_steps={12 * n_kill}"]
    chance = random.Random(25)
    for _ in range(n_kill):
        reached = max([line["step"] for line in place.lines()], default=0)
        processes = place.fork(*options, "--resume=auto", TMPDIR=str(SHM))
        place.wait_for_step(reached + chance.randint(1, 4))
        # A step and its checkpoint take about equally long.
        time.sleep(chance.uniform(0, 0.04))
        processes[0].kill()
        assert place.end(processes).code == -9
        for path in (place.folder / "runs").rglob("*.ckpt"):
            assert verify_checkpoint(path) in read_manifest(path)
    finish(*options)
    assert list(place.folder.rglob("*.part")) == []


EVERY_ROW = [
    "--data.order=rolled", "--data.segments=varlen", "--trainer.accumulate_grad_batches=2",
    "--trainer.max_steps=14", "--trainer.val_check_interval=20", "--trainer.log_every_n_steps=1",
    "--checkpoint.every_n_steps=4",
]  # fmt: skip


@pytest.mark.parametrize("step", [8, 10])
def test_process_killed_at_any_line_of_a_save_has_logged_every_step_once(
    place, finish, count, step
):
    """After step 10 in and after a validation, when best.ckpt is saved too."""
    ended = place.fit(*EVERY_ROW, COPIES=f"{step} {count(4, 1)}")
    assert ended.code == 0, ended.output
    copies = sorted(place.folder.glob("copy*"))
    states = {}
    assert len(copies) > count(70, 280)
    for copy in copies:
        latest, _ = find_latest(copy / "version_0")
        rows = (copy / "version_0" / "metrics.csv").read_bytes()
        states.setdefault((latest.saved["global_step"], rows), copy)
    assert {reached for reached, _ in states} == {4 if step == 8 else 8, step}
    for copy in states.values():
        shutil.rmtree(place.folder / "runs", ignore_errors=True)
        copy.rename(place.folder / "runs")
        finish(*EVERY_ROW)


@pytest.mark.parametrize(
    ("call", "rank"),
    [("gather", 0), ("save_checkpoint", 0), ("barrier", 1), ("on_advance_end", 1)],
)
def test_run_of_two_has_logged_every_step_once_if_one_is_killed_while_both_save(
    place, finish, call, rank
):
    """Before, while and after the checkpoint of step 8 is written by rank 0."""
    ended = place.fit(*EVERY_ROW, fault=f"KILL:{call}@8:{rank}", ranks=2)
    assert ended.codes[rank] == -9, ended.output
    assert ended.codes[1 - rank] != 0
    finish(*EVERY_ROW, ranks=2)


ON_A_SMALL_DISK = """
mkdir runs && mount -t tmpfs -o size=$SIZE tmpfs runs || exit 99
"$@"
code=$?
rm -f runs/filler
cp -r runs kept
exit $code
"""


@pytest.mark.skipif(not can_mount(), reason="a file system can only be mounted by root")
@pytest.mark.parametrize(
    ("fault", "message"),
    [("fill", "No space left on device"), ("protect", "Read-only file system")],
)
def test_disk_that_cannot_be_written_stops_training_and_keeps_the_last_file(
    place, finish, fault, message
):
    inside = ["unshare", "-m", "sh", "-c", ON_A_SMALL_DISK, "sh"]
    disk = {"FILL": "runs/filler", "SIZE": "2m"}
    ended = place.end(place.launch(before=inside, fault=f"{fault}:before12", **disk))
    assert ended.code == 6, ended.output
    assert f"cannot be written ({message}; " in ended.output
    (place.folder / "runs").rmdir()
    (place.folder / "kept").rename(place.folder / "runs")
    assert place.state()["global_step"] == 10
    assert not list(place.folder.rglob("*.part"))
    finish()


def test_run_whose_folder_is_removed_goes_on_and_leaves_a_whole_checkpoint(place, whole):
    ended = place.fit(fault="remove:before12")
    assert ended.code == 0, ended.output
    place.assert_same(whole(), every_row=False)


def test_file_in_the_place_of_the_checkpoints_stops_training_in_one_line(place):
    ended = place.fit(fault="obstruct:before12")
    assert ended.code == 6, ended.output
    [line] = [line for line in ended.output.splitlines() if "error" in line]
    assert "checkpoints" in line


def test_two_runs_that_start_at_once_have_a_folder_each(place, whole, count):
    for _ in range(count(3, 10)):
        place.forget()
        both = [place.fork(LOSSES=f"losses{nth}") for nth in range(2)]
        assert place.end(both[0], alone=False).code == place.end(both[1]).code == 0
        folders = sorted((place.folder / "runs").iterdir())
        assert [folder.name for folder in folders] == ["version_0", "version_1"]
        for folder in folders:
            last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
            assert_close(last["state_dict"], whole().state()["state_dict"], rtol=0, atol=0)


def test_of_two_that_resume_one_run_the_second_is_refused(place, whole, count):
    for _ in range(count(3, 10)):
        place.forget()
        assert place.fit(fault="KILL:13").code == -9
        first, second = (place.fork("--resume=auto", PAUSE="0.1") for _ in range(2))
        code = place.end(first, alone=False).code
        ended = place.end(second)
        assert {code, ended.code} == {0, 6}, ended.output
        assert "another process trains there" in ended.output
        place.assert_same(whole())


@pytest.mark.parametrize("clock", ["of Python", "of the system"])
def test_clock_that_is_set_back_changes_nothing(place, finish, clock):
    """Python's, or the system's from tomorrow to yesterday; files get time stamps of 2033."""
    if clock == "of the system" and shutil.which("faketime") is None:
        pytest.skip("no faketime: apt-get install faketime")
    for days, fault in (("+1d", "clock:7,KILL:12"), ("-1d", "KILL:25")):
        if clock == "of Python":
            assert place.fit("--resume=auto", fault=fault).code == -9
        else:
            options = {"before": ("faketime", "-f", days), "fault": fault.split(",")[-1]}
            # The program's own code for a command that was killed.
            assert place.end(place.launch("--resume=auto", **options)).code == 1
        for nth, path in enumerate(sorted((place.folder / "runs").rglob("*"), reverse=True)):
            os.utime(path, (2e9 + nth, 2e9 + nth))
    finish()


def test_run_whose_standard_streams_are_closed_is_the_same(place, whole):
    ended = place.end(place.launch(before=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]))
    assert ended.code == 0
    place.assert_same(whole())


def test_utf8_text_in_the_c_locale_is_read_trained_on_and_written(place):
    text = "\ufeffdéjà vu – ça va ☃\n" * 300
    (place.folder / "letters.txt").write_bytes(text.encode())
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    ended = place.end(place.launch("--data.vocab=characters", **plain))
    assert ended.code == 0, ended.output
    command = ["generate", "--ckpt_path", str(place.path()), "--prompt=d", "--max_new_tokens=99"]
    ended = place.end(place.launch(command=command, **plain))
    assert ended.code == 0, ended.output
    assert ended.output.startswith("d")
    assert ended.output.isascii()
