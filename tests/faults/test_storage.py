"""Disks that are full, closed, or elsewhere; and a process that dies while it writes."""

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from txl_lightning.checkpoints import files

pytestmark = pytest.mark.faults

SHM = Path("/dev/shm")


def can_mount() -> bool:
    """Return whether a file system of our own can be had (as root on Linux)."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not SHM.is_dir(), reason="no second file system")
def test_25_kills_during_saves_leave_no_truncated_file(place, finish):
    """With $TMPDIR on another file system, where Lightning's own files were torn."""
    options = ["--checkpoint.every_n_steps=1", "--trainer.max_steps=300"]
    chance = random.Random(25)
    for _ in range(25):
        reached = max([line["step"] for line in place.lines()], default=0)
        processes = place.fork(*options, "--resume=auto", TMPDIR=str(SHM))
        place.wait_for_step(reached + chance.randint(1, 4))
        # A step and its checkpoint take about as long.
        time.sleep(chance.uniform(0, 0.04))
        processes[0].kill()
        assert place.end(processes).code == -9
        for path in (place.folder / "runs").rglob("*.ckpt"):
            assert files.verify_checkpoint(path) is not None
    # Lightning logs a step after its checkpoint: a kill between the two loses a row.
    finish(*options, every_row=False)
    assert list(place.folder.rglob("*.part")) == []


ON_A_SMALL_DISK = """
mkdir runs && mount -t tmpfs -o size=2m tmpfs runs || exit 99
"$@"
code=$?
rm -f runs/filler
cp -r runs kept
exit $code
"""


@pytest.mark.skipif(not can_mount(), reason="a file system can only be mounted by root")
def test_disk_that_fills_up_stops_training_and_keeps_the_last_file(place, finish):
    inside = ["unshare", "-m", "sh", "-c", ON_A_SMALL_DISK, "sh"]
    ended = place.end(place.launch(before=inside, fault="fill:before12", FILL="runs/filler"))
    assert ended.code == 6, ended.output
    assert "cannot be written (No space left on device; " in ended.output
    (place.folder / "runs").rmdir()
    (place.folder / "kept").rename(place.folder / "runs")
    assert place.state()["global_step"] == 10
    assert not list(place.folder.rglob("*.part"))
    finish()


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
