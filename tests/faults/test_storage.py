"""Disks that are full, closed, or elsewhere; and a process that dies while it writes."""

import os
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
def test_25_kills_while_it_saves_leave_no_torn_file(place, finish):
    """With $TMPDIR on another file system, where Lightning's own files were torn."""
    options = ["--checkpoint.every_n_steps=1", "--trainer.max_steps=300"]
    chance = random.Random(25)
    for _ in range(25):
        reached = max([line["step"] for line in place.lines()], default=0)
        command = ["fit", *place.small, *options, "--resume=auto"]
        processes = place.fork(*command, TMPDIR=str(SHM))
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
    inside = ["unshare", "-m", "sh", "-c", ON_A_SMALL_DISK, "sh", *place.driver]
    fault = {"fault": "fill:12", "FILL": "runs/filler"}
    ended = place.wait(place.launch(*inside, "fit", *place.small, **fault))
    assert ended.code == 6, ended.output
    assert "cannot be written (No space left on device; " in ended.output
    (place.folder / "runs").rmdir()
    (place.folder / "kept").rename(place.folder / "runs")
    assert place.state()["global_step"] == 10
    assert not list(place.folder.rglob("*.part"))
    finish()


def test_folder_that_is_closed_stops_before_the_first_step(place):
    (place.folder / "runs").mkdir(mode=0o555)
    # Root may write anywhere unless it gives that up.
    lesser = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    command = [*(lesser if os.getuid() == 0 else []), *place.driver, "fit", *place.small]
    ended = place.wait(place.launch(*command))
    assert ended.code == 6, ended.output
    assert "Permission denied" in ended.output
    assert "Traceback" not in ended.output
    assert place.lines() == []
    assert not list((place.folder / "runs").iterdir())


def test_key_in_the_environment_is_written_nowhere(place):
    key = "5ec2e7" + "0" * 28 + "c0ffee"
    logger = ["--trainer.logger=WandbLogger", "--trainer.logger.offline=true"]
    ended = place.fit(*logger, WANDB_API_KEY=key, WANDB_MODE="offline", WANDB_DIR=".")
    assert ended.code == 0, ended.output
    assert key not in ended.output
    kept = [path for path in place.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in kept)
    assert [path for path in kept if key.encode() in path.read_bytes()] == []


def test_utf8_text_in_the_c_locale_is_read_trained_on_and_written(place):
    text = "\ufeffdéjà vu – ça va ☃\n" * 300
    (place.folder / "letters.txt").write_bytes(text.encode())
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    command = [*place.driver, "fit", *place.small, "--data.vocab=characters"]
    ended = place.wait(place.launch(*command, **plain))
    assert ended.code == 0, ended.output
    options = ["--ckpt_path", str(place.path()), "--prompt=d", "--max_new_tokens=99"]
    ended = place.wait(place.launch(*place.driver, "generate", *options, **plain))
    assert ended.code == 0, ended.output
    assert ended.output.startswith("d")
    assert ended.output.isascii()
