"""A checkpoint file is whole or absent, and known by its checksum."""

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from txl_lightning.checkpoints import files, find_latest, read_checkpoint
from txl_lightning.errors import CheckpointError, StorageError
from txl_lightning.files import host_name, temporary_path


def write(root: Path, step: int, name="last.ckpt", run="version_0", exact=True, size=99) -> Path:
    """A checkpoint of a run under `root`, as fit writes it."""
    path = root / run / "checkpoints" / name
    folder = f"{run}/checkpoints"
    held = {"global_step": step, "weights": torch.full((size,), float(step))}
    files.write(held, path, {"step": step, "exact": exact, "folder": folder})
    return path


AT_EVERY_LINE = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from txl_lightning.checkpoints import files, find_latest
root = Path(sys.argv[1])

def die_at(number):
    def trace(frame, event, argument):
        nonlocal number
        if frame.f_code.co_filename == files.__file__:
            number -= event == "line"
            if number == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
    sys.settrace(trace)

for root in sorted(Path(sys.argv[1]).iterdir()):
    number, code = 0, None
    while code != 0:
        number += 1
        copy = root.with_name(f"{root.name}-{number:03}")
        shutil.copytree(root, copy)
        child = os.fork()
        if not child:
            die_at(number)
            path = copy / "version_0" / "checkpoints" / "last.ckpt"
            about = {"step": 3, "exact": True, "folder": "version_0/checkpoints"}
            files.write({"global_step": 3, "weights": torch.zeros(99)}, path, about)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.fixture(scope="module")
def killed_at_every_line(tmp_path_factory) -> Path:
    """Copies of three runs with 0, 1 and 2 checkpoints, each killed at a line of the next one."""
    folder = tmp_path_factory.mktemp("killed")
    for before in range(3):
        (folder / str(before)).mkdir()
        for step in range(1, before + 1):
            write(folder / str(before), step)
    subprocess.run([sys.executable, "-c", AT_EVERY_LINE, folder], check=True, timeout=100)
    return folder


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_process_killed_at_any_line_of_writing_leaves_only_whole_files(
    killed_at_every_line, before
):
    killed, found = sorted(killed_at_every_line.glob(f"{before}-*")), []
    assert len(killed) > 30
    for copy in killed:
        find_latest.remove_partial_files(copy)
        assert not list(copy.rglob("*.part"))
        for path in copy.rglob("*.ckpt"):
            assert files.check(path)["step"] == files.read(path)["global_step"]
        path, complaints = find_latest.find_latest(copy)
        assert complaints == []
        found.append(files.read(path)["global_step"] if path else 0)
    # Never less than there was, and from some line on the new one.
    assert found == sorted(found)
    assert set(found) == {before, 3}


def test_what_is_replaced_is_kept_with_what_is_known_of_it(tmp_path):
    for step in (1, 2, 3):
        last = write(tmp_path, step)
        write(tmp_path, step, "best.ckpt")
    previous = last.with_name("previous.ckpt")
    assert [files.read(path)["global_step"] for path in (last, previous)] == [3, 2]
    assert files.check(previous)["step"] == 2
    names = {path.name for path in last.parent.iterdir()}
    assert names == {
        f"{name}.ckpt{end}" for name in ("last", "previous", "best") for end in ("", ".json")
    }


def test_a_step_that_is_saved_twice_does_not_push_out_the_one_before(tmp_path):
    for step in (1, 2, 2, 2, 3, 3):
        last = write(tmp_path, step)
        kept = [path for path in sorted(last.parent.glob("*.ckpt")) if files.check(path)]
        assert [files.check(path)["step"] for path in kept][:1] == [step]
    assert [files.check(path)["step"] for path in kept] == [3, 2]


def test_what_was_there_is_never_written_over(tmp_path):
    """A copy can be cut in the middle; a rename cannot."""
    for step in (1, 2):
        last = write(tmp_path, step)
    links = [tmp_path / "one", tmp_path / "two"]
    for link, name in zip(links, ("previous.ckpt", "last.ckpt"), strict=True):
        os.link(last.with_name(name), link)
    write(tmp_path, 3)
    assert [torch.load(link)["global_step"] for link in links] == [1, 2]
    assert last.with_name("previous.ckpt").samefile(links[1])


def flip(path: Path) -> None:
    """Change one bit, in the weights of a file that is large enough."""
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


CORRUPTIONS = {
    "a bit": flip,
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "its last byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "everything": lambda path: os.truncate(path, 0),
    "its content": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
    "its place": lambda path: shutil.copy(path.with_name("other.ckpt"), path),
}


@pytest.mark.parametrize("lost", CORRUPTIONS)
def test_a_file_that_is_not_what_was_written_is_refused_by_name(tmp_path, lost):
    write(tmp_path, 1, size=5000)
    path = write(tmp_path, 2, size=5000)
    write(tmp_path, 4, "other.ckpt", size=5000)
    CORRUPTIONS[lost](path)
    with pytest.raises(CheckpointError, match=r"last\.ckpt: damaged: its sha256 is \w{16}, the"):
        files.read(path)
    path.with_name("other.ckpt").unlink()
    found, complaints = find_latest.find_latest(tmp_path)
    assert found == path.with_name("previous.ckpt")
    assert ["last.ckpt: damaged" in complaint for complaint in complaints] == [True]


@pytest.mark.parametrize(
    "lost", [name for name in CORRUPTIONS if name not in ("a bit", "its place")]
)
def test_without_a_manifest_a_damaged_file_is_no_checkpoint(tmp_path, lost):
    path = write(tmp_path, 1, size=5000)
    files.manifest_of(path).unlink()
    CORRUPTIONS[lost](path)
    with pytest.raises(CheckpointError, match=r"last\.ckpt is not a checkpoint written by fit"):
        files.read(path)


@pytest.mark.parametrize(
    "garbage", [b"X", b"X\x01\x00\x00\x00\xff", b"0", b"PK\x03\x04", b"a" * 99]
)
def test_garbage_is_no_checkpoint(tmp_path, garbage):
    """Whatever torch makes of it: each of these is another exception."""
    (tmp_path / "a.ckpt").write_bytes(garbage)
    with pytest.raises(CheckpointError, match=r"a\.ckpt is not a checkpoint written by fit"):
        files.read(tmp_path / "a.ckpt")


def test_a_file_moved_without_its_manifest_can_be_named_but_is_not_found(tmp_path):
    path = write(tmp_path, 1)
    files.manifest_of(path).unlink()
    assert files.read(path)["global_step"] == 1
    found, [complaint] = find_latest.find_latest(tmp_path)
    assert found is None
    assert f"{path}.json is missing" in complaint


def test_a_run_behind_a_link_is_found(tmp_path):
    path = write(tmp_path / "elsewhere", 1)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "version_0").symlink_to(path.parents[1])
    found, _ = find_latest.find_latest(tmp_path / "runs")
    assert found.samefile(path)


def test_of_the_same_step_it_is_the_last(tmp_path):
    last = write(tmp_path, 4)
    write(tmp_path, 4, "previous.ckpt")
    write(tmp_path, 4, "best.ckpt")
    assert find_latest.find_latest(tmp_path) == (last, [])


def test_a_copy_is_found_where_it_is(tmp_path):
    path = write(tmp_path, 4, "best.ckpt")
    target = tmp_path / "version_1" / "checkpoints" / "best.ckpt"
    files.copy(path, target, tmp_path)
    assert files.read(target)["global_step"] == 4
    assert find_latest.find_latest(tmp_path) == (target, [])


@pytest.mark.parametrize("held", ["", "{", "\x00", "{}", '{"epoch": 1}', "[]"])
def test_what_is_no_manifest_is_refused_and_passed_over(tmp_path, held):
    older = write(tmp_path, 1, run="version_0")
    path = write(tmp_path, 2, run="version_1")
    files.manifest_of(path).write_text(held)
    with pytest.raises(CheckpointError, match=r"last\.ckpt\.json: not a manifest"):
        files.read(path)
    assert find_latest.find_latest(tmp_path)[0] == older


def test_a_checkpoint_of_a_later_format_says_so(tmp_path):
    later = {files.KEY: {"format": files.FORMAT + 1}}
    files.write(later, tmp_path / "a.ckpt", {"step": 1, "exact": True, "folder": "."})
    said = r"a\.ckpt: written by a later release \(format 2\); this release reads formats up to 1"
    with pytest.raises(CheckpointError, match=said):
        files.read(tmp_path / "a.ckpt")


@pytest.mark.parametrize("hours", [-1, 1])
def test_newest_is_what_has_made_most_steps_whatever_the_clocks_say(tmp_path, hours):
    steps = {"version_2": 5, "version_10": 7, "version_9": 9}
    for run, step in steps.items():
        path = write(tmp_path, step - 1, run=run)
        assert write(tmp_path, step, run=run) == path
    for nth, path in enumerate(sorted(tmp_path.rglob("*.ckpt"))):
        os.utime(path, (0, 1e9 + 3600 * hours * nth))
    latest = tmp_path / "version_10" / "checkpoints"
    assert find_latest.find_latest(tmp_path) == (latest / "last.ckpt", [])
    (latest / "last.ckpt").unlink()
    assert find_latest.find_latest(tmp_path) == (latest / "previous.ckpt", [])


def test_what_was_saved_in_mid_step_is_not_found(tmp_path):
    path = write(tmp_path, 5)
    write(tmp_path, 9, "crash-9.ckpt", exact=False)
    assert find_latest.find_latest(tmp_path) == (path, [])
    write(tmp_path, 12, "crash-12.ckpt", run="version_1", exact=False)
    assert find_latest.find_latest(tmp_path) == (path, [])


def test_the_runs_of_another_folder_are_not_found(tmp_path):
    write(tmp_path / "inner", 9)
    assert find_latest.find_latest(tmp_path) == (None, [])


def test_a_full_disk_keeps_what_was_there(tmp_path):
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"last\.ckpt: cannot be written \(File too large; "):
            write(tmp_path, 3, size=100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before


def test_it_is_written_beside_its_place(tmp_path, monkeypatch):
    """A rename from another file system would be a copy, which can be cut."""
    nowhere = tmp_path / "nowhere"
    monkeypatch.setenv("TMPDIR", str(nowhere))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert files.read(write(tmp_path, 1))["global_step"] == 1
    assert temporary_path(tmp_path / "a.ckpt").parent == tmp_path


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"a\.ckpt: cannot be written \(Not a directory; "):
        files.write({}, tmp_path / "file" / "folder" / "a.ckpt", {})


def test_a_mistake_of_ours_is_not_called_a_full_disk(tmp_path):
    with pytest.raises(AttributeError):
        files.write({"call": lambda: 1}, tmp_path / "a.ckpt", {})
    assert list(tmp_path.iterdir()) == []


def test_parts_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path):
    over = subprocess.Popen(["true"])
    over.wait()
    names = {
        "dead": f".last.ckpt.{host_name()}.{over.pid}.part",
        "living": f".last.ckpt.{host_name()}.{os.getppid()}.part",
        "elsewhere": f".last.ckpt.another-{host_name()}.{over.pid}.part",
        "not ours": ".letters.part",
    }
    folder = tmp_path / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    for name in names.values():
        (folder / name).touch()
    find_latest.remove_partial_files(tmp_path)
    left = {path.name for path in folder.iterdir()}
    assert left == {names[of] for of in ("living", "elsewhere", "not ours")}


def test_removed_it_is_gone_with_its_manifest(tmp_path):
    path = write(tmp_path, 1)
    files.remove(path)
    files.remove(path)
    assert list(path.parent.iterdir()) == []


def test_the_manifest_says_what_wrote_it(run_folder):
    path = run_folder / "checkpoints" / "last.ckpt"
    [newest, *_] = json.loads(files.manifest_of(path).read_text()).values()
    assert (newest["step"], newest["exact"], newest["world_size"]) == (4, True, 1)
    assert newest["folder"] == "version_0/checkpoints"
    assert newest["bytes"] == path.stat().st_size
    assert newest["versions"]["torch"] == torch.__version__
    fingerprint = read_checkpoint(path)["CorpusDataModule"]["fingerprint"]
    assert newest["text"] == fingerprint
