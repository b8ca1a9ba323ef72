"""A checkpoint file is intact or absent, and identified by its checksum."""

import json
import os
import random
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from txl_lightning.checkpoints import load_checkpoint, saving
from txl_lightning.checkpoints.loading import find_latest
from txl_lightning.checkpoints.saving import manifest_path, save_checkpoint
from txl_lightning.errors import CheckpointError, StorageError
from txl_lightning.files import find_host_name
from txl_lightning.runs.folder import FORMAT, KEY, remove_partial_files


def save_step(
    root: Path, step: int, name="last.ckpt", run="version_0", exact=True, size=99
) -> Path:
    """Save a checkpoint of a run under `root` as fit does."""
    path = root / run / "checkpoints" / name
    content = {"global_step": step, "weights": torch.full((size,), float(step))}
    save_checkpoint(content, path, {"step": step, "exact": exact})
    return path


def read_step(path: Path) -> int:
    return torch.load(path)["global_step"]


def find_path(root: Path) -> Path:
    checkpoint, problems = find_latest(root / "version_0")
    assert problems == []
    return checkpoint.path


def verify_step(path: Path) -> int:
    return saving.read_manifest(path)[saving.verify_checkpoint(path)]["step"]


COPY_AT_EVERY_LINE = """
import sys
from pathlib import Path
import torch
from tests.helpers.interrupting import copy_at_every_line
from txl_lightning import files
from txl_lightning.checkpoints import saving

def save(root):
    path = root / "version_0" / "checkpoints" / "last.ckpt"
    content = {"global_step": 3, "weights": torch.zeros(99)}
    saving.save_checkpoint(content, path, {"step": 3, "exact": True})

for root in sorted(Path(sys.argv[1]).iterdir()):
    copy_at_every_line(save, root, saving, files)
"""


@pytest.mark.slow
def test_process_killed_at_any_line_of_a_save_leaves_only_intact_files(tmp_path, processes):
    for before in range(3):
        (tmp_path / str(before)).mkdir()
        for step in range(1, before + 1):
            save_step(tmp_path / str(before), step)
    done = processes.run([sys.executable, "-c", COPY_AT_EVERY_LINE, tmp_path])
    assert done.returncode == 0, done.stderr
    for before in range(3):
        killed = sorted(tmp_path.glob(f"{before}-*"))
        steps = []
        assert len(killed) > 6
        for copy in killed:
            remove_partial_files(copy)
            assert not list(copy.rglob("*.part"))
            for path in copy.rglob("*.ckpt"):
                assert verify_step(path) == read_step(path)
            latest, problems = find_latest(copy / "version_0")
            assert problems == []
            steps.append(latest.saved["global_step"] if latest else 0)
        # The old step up to some line, then the new one.
        assert steps == sorted(steps)
        assert set(steps) == {before, 3}


def test_replaced_last_checkpoint_is_kept_and_removed_with_its_manifest(tmp_path):
    for step in (1, 2, 2, 3, 3):
        last = save_step(tmp_path, step)
        save_step(tmp_path, step, "best.ckpt")
    previous = last.with_name("previous.ckpt")
    # A step that is saved twice does not replace the previous one.
    assert [read_step(path) for path in (last, previous)] == [3, 2]
    assert [verify_step(path) for path in (last, previous)] == [3, 2]
    # The manifest must describe the file that a process leaves if it dies before the rename.
    named = [entry["step"] for entry in json.loads(manifest_path(last).read_text()).values()]
    assert named == [3, 2, 1]
    names = {f"{name}.ckpt{end}" for name in ("last", "previous", "best") for end in ("", ".json")}
    assert {path.name for path in last.parent.iterdir()} == names
    for name in ("last", "last", "previous", "best"):
        saving.remove_checkpoint(last.with_name(f"{name}.ckpt"))
    assert list(last.parent.iterdir()) == []


def test_checkpoints_are_replaced_by_renaming_never_overwritten(tmp_path):
    """A copy can be interrupted; a rename cannot."""
    save_step(tmp_path, 1)
    last = save_step(tmp_path, 2)
    link = tmp_path / "link"
    os.link(last, link)
    save_step(tmp_path, 3)
    assert read_step(link) == 2
    assert last.with_name("previous.ckpt").samefile(link)


CORRUPTIONS = {
    "bit": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"x" + path.read_bytes()[-8:]),
    "last byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "content": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
    "place": lambda path: shutil.copy(path.with_name("other.ckpt"), path),
}


@pytest.mark.parametrize("lost", CORRUPTIONS)
def test_damaged_checkpoint_is_refused_by_name_skipped_and_not_kept(tmp_path, lost):
    save_step(tmp_path, 1, size=5000)
    path = save_step(tmp_path, 2, size=5000)
    save_step(tmp_path, 4, "other.ckpt", size=5000)
    CORRUPTIONS[lost](path)
    with pytest.raises(CheckpointError, match=r"last\.ckpt: damaged: its sha256 is \w{16}, the"):
        load_checkpoint(path)
    path.with_name("other.ckpt").unlink()
    latest, [problem] = find_latest(tmp_path / "version_0")
    assert latest.path == path.with_name("previous.ckpt")
    assert "last.ckpt: damaged" in problem
    save_step(tmp_path, 3, size=5000)
    if lost not in ("bit", "place"):
        # Its size shows that it is truncated, so it does not replace the intact one.
        assert read_step(path.with_name("previous.ckpt")) == 1


def test_checkpoint_without_its_manifest_is_loaded_with_one_warning_but_is_not_found(
    run_folder, tmp_path
):
    path = tmp_path / "version_0" / "checkpoints" / "best.ckpt"
    path.parent.mkdir(parents=True)
    shutil.copy(run_folder / "checkpoints" / "best.ckpt", path)
    missing = r"cannot be verified: its manifest best\.ckpt\.json is missing"
    with pytest.warns(UserWarning, match=missing):
        load_checkpoint(path)
    assert load_checkpoint(path).saved
    assert find_latest(path.parents[1]) == (None, [f"{path}: its manifest {path}.json is missing"])


ENTRY = {"step": 2, "exact": True, "bytes": 9}
SHAPES = [{}, [], 5, {"epoch": 1}, [ENTRY], {"a": {**ENTRY, "step": "a"}}, {"a": [ENTRY]}]
SHAPES += [
    {"a": {**ENTRY, **wrong}} for wrong in ({"step": None}, {"exact": "yes"}, {"bytes": 1.5})
]


@pytest.mark.parametrize("content", ["", "\x00", "[" * 100_000, *map(json.dumps, SHAPES)])
def test_damaged_manifest_is_refused_skipped_and_replaced(tmp_path, content):
    best = save_step(tmp_path, 1, "best.ckpt", run="version_1")
    path = save_step(tmp_path, 2, run="version_1")
    manifest_path(path).write_text(content)
    latest, [problem] = find_latest(path.parents[1])
    assert (latest.path, f"{path}.json: not a manifest" in problem) == (best, True)
    best.unlink()
    with pytest.raises(CheckpointError, match=r"last\.ckpt\.json: not a manifest"):
        load_checkpoint(path)
    assert find_latest(path.parents[1])[0] is None
    assert read_step(save_step(tmp_path, 3, run="version_1")) == 3


def test_latest_checkpoint_has_the_most_steps_of_its_run_whatever_the_file_times(tmp_path):
    for step in (6, 7):
        save_step(tmp_path, step)
    # At the same step, last.ckpt is preferred.
    save_step(tmp_path, 7, "best.ckpt")
    # Other runs, and checkpoints saved within a step, are ignored.
    save_step(tmp_path / "version_0" / "inner", 99)
    save_step(tmp_path, 12, "crash-12.ckpt", exact=False)
    for hours in (-1, 1):
        for nth, path in enumerate(sorted(tmp_path.rglob("*.ckpt"))):
            os.utime(path, (0, 1e9 + 3600 * hours * nth))
        latest = tmp_path / "version_0" / "checkpoints"
        assert find_path(tmp_path) == latest / "last.ckpt"
    (latest / "best.ckpt").unlink()
    (latest / "last.ckpt").unlink()
    assert find_path(tmp_path) == latest / "previous.ckpt"


def test_checkpoint_of_a_later_format_is_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    save_checkpoint({KEY: {"format": FORMAT + 1}}, path, {"step": 1, "exact": True})
    with pytest.raises(CheckpointError, match=rf"release \(format {FORMAT + 1}\); this rel"):
        load_checkpoint(path)


def test_full_disk_keeps_the_files_that_were_there(tmp_path, limit_file_size):
    save_step(tmp_path, 1)
    path = save_step(tmp_path, 2)
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    message = r"last\.ckpt: cannot be written \(File too large; "
    with limit_file_size(100_000), pytest.raises(StorageError, match=message):
        save_step(tmp_path, 3, size=100_000)
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before


def test_errors_of_saving_name_the_file_or_are_raised_unchanged(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"a\.ckpt: cannot be written \(Not a directory; "):
        save_checkpoint({}, tmp_path / "file" / "folder" / "a.ckpt", {})
    with pytest.raises(AttributeError):
        save_checkpoint({"call": lambda: 1}, tmp_path / "a.ckpt", {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_partial_files_of_ended_processes_of_this_machine_are_removed(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone = f".last.ckpt.{find_host_name()}.{ended.pid}.part"
    left = {
        f".last.ckpt.{find_host_name()}.{os.getppid()}.part",
        f".last.ckpt.another-{find_host_name()}.{ended.pid}.part",
        ".letters.part",
    }
    folder = tmp_path / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    for name in (gone, *left):
        (folder / name).touch()
        (folder.parent / name).touch()
    remove_partial_files(tmp_path)
    assert {path.name for path in folder.iterdir()} == left
    assert {path.name for path in folder.parent.iterdir()} == left | {"checkpoints"}


def test_manifest_describes_what_wrote_the_checkpoint(run_folder):
    path = run_folder / "checkpoints" / "last.ckpt"
    [newest, *_] = json.loads(manifest_path(path).read_text()).values()
    assert (newest["step"], newest["exact"], newest["world_size"]) == (4, True, 1)
    assert newest["bytes"] == path.stat().st_size
    assert newest["versions"]["torch"] == version("torch")
    assert newest["text"] == load_checkpoint(path).saved["CorpusDataModule"]["fingerprint"]
