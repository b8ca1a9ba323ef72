"""A run at a URL is whole or not there, whatever happens while it is copied or fetched."""

import json
import os
import shutil
import sys
import uuid
from pathlib import Path

import fsspec
import pytest
import torch

from txl_lightning.checkpoints import mirror
from txl_lightning.checkpoints.loading import find_latest
from txl_lightning.checkpoints.mirror import Mirror, fetch_newer
from txl_lightning.checkpoints.saving import save_checkpoint
from txl_lightning.errors import StorageError
from txl_lightning.runs.folder import list_versions


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/mirror"
    return f"memory://{uuid.uuid4()}"


def save_step(root: Path, step: int, run: str = "version_0") -> Path:
    """Save a checkpoint and a log as fit does; return the run's folder."""
    content = {"global_step": step, "weights": torch.full((9,), float(step))}
    path = root / run / "checkpoints" / "last.ckpt"
    save_checkpoint(content, path, {"step": step, "exact": True})
    (root / run / "metrics.csv").write_text(f"step\n{step}\n")
    return root / run


def read_steps(root: Path) -> tuple[int, str]:
    """Return the step of the newest checkpoint under a root and that of its log."""
    latest, problems = find_latest(list_versions(root)[0])
    assert problems == []
    log = (latest.run_folder / "metrics.csv").read_text()
    return latest.saved["global_step"], log.split()[1]


def copy_steps(url: str, root: Path, *steps: int, run: str = "version_0") -> Mirror:
    copier = Mirror(url)
    for step in steps:
        folder = save_step(root, step, run)
        copier.claim(folder)
        copier.copy(folder)
    return copier


def list_files(url: str) -> list[str]:
    fs, root = fsspec.url_to_fs(url)
    return sorted(path.removeprefix(root) for path in fs.find(root))


def test_a_younger_run_without_checkpoints_lets_no_older_one_be_fetched_again(url, tmp_path):
    copy_steps(url, tmp_path / "a", 1)
    (tmp_path / "a" / "version_1").mkdir()
    assert fetch_newer(url, tmp_path / "a") == []
    assert sorted(each.name for each in (tmp_path / "a").iterdir()) == ["version_0", "version_1"]


def test_fetched_run_has_the_files_of_the_last_write_and_two_states_are_kept(url, tmp_path):
    folder = save_step(tmp_path / "a", 1)
    (folder / "checkpoints" / "crash-1.ckpt").touch()
    copy_steps(url, tmp_path / "a", 1, 2, 3)
    assert fetch_newer(url, tmp_path / "b") == []
    fetched = {path.name: path.read_bytes() for path in (tmp_path / "b").rglob("*.*")}
    assert {*fetched} - {"version_0.lock"} == {
        *("last.ckpt", "last.ckpt.json", "metrics.csv", "mirror.json")
    }
    for path in folder.rglob("*.*"):
        assert fetched.get(path.name, path.read_bytes()) == path.read_bytes()
    states = [name for name in list_files(url) if "/states/" in name]
    assert [name.split("/")[-1][:8] for name in states] == ["00000002", "00000003"]
    # last.ckpt, its manifest and the log of two states, and the identity, also by its own name.
    assert len(list_files(url)) - len(states) == 2 * 3 + 2


def test_file_that_is_there_is_not_uploaded_again_and_a_truncated_one_is(tmp_path):
    url = f"file://{tmp_path}/mirror"
    files = tmp_path / "mirror" / "version_0" / "files"
    copier = copy_steps(url, tmp_path / "a", 1)
    [whole, cut] = sorted(files.iterdir(), key=lambda path: path.stat().st_size)[-2:]
    os.truncate(cut, 1)
    for path in (whole, cut):
        os.utime(path, (9, 9))
    copier.copy(tmp_path / "a" / "version_0")
    assert [path.stat().st_mtime == 9 for path in (whole, cut)] == [True, False]
    assert fetch_newer(url, tmp_path / "b") == []


def damage(path: str, url: str) -> None:
    fs, _ = fsspec.url_to_fs(url)
    content = bytearray(fs.cat_file(path))
    content[len(content) // 2] ^= 1
    fs.pipe_file(path, bytes(content))


@pytest.mark.parametrize("part", ["file", "missing file", "state", "missing state"])
def test_damaged_state_is_passed_over_for_the_one_before(url, tmp_path, part):
    copy_steps(url, tmp_path / "a", 1, 2)
    fs, root = fsspec.url_to_fs(url)
    path = fs.ls(f"{root}/version_0/states", detail=False)
    newest = max(path)
    if "file" in part:
        files = json.loads(fs.cat_file(newest))["files"]
        newest = f"{root}/version_0/files/{files['checkpoints/last.ckpt']}"
    fs.rm_file(newest) if "missing" in part else damage(newest, url)
    problems = fetch_newer(url, tmp_path / "b")
    assert read_steps(tmp_path / "b") == (1, "1")
    assert len(problems) == (part != "missing state")
    assert all(problem.startswith(f"{url}/version_0/") for problem in problems)
    # The next state is whole again.
    shutil.rmtree(tmp_path / "b")
    copy_steps(url, tmp_path / "a", 3)
    assert fetch_newer(url, tmp_path / "b") == []
    assert read_steps(tmp_path / "b") == (3, "3")


@pytest.mark.parametrize(
    ("steps", "run", "expected"),
    [((), "version_0", 2), ((1,), "version_0", 2), ((5,), "version_0", 5), ((1,), "version_1", 1)],
)
def test_run_is_fetched_only_if_it_is_ahead_of_the_machines_own(
    url, tmp_path, steps, run, expected
):
    copy_steps(url, tmp_path / "a", 2)
    root = tmp_path / "b"
    for step in steps:
        save_step(root, step, run)
    assert fetch_newer(url, root) == []
    assert read_steps(root)[0] == expected
    # What was there is not lost.
    kept = [path for path in root.rglob("last.ckpt") if torch.load(path)["global_step"] in steps]
    assert len(kept) == len(steps)


def test_latest_run_is_fetched_and_nothing_from_an_empty_url(url, tmp_path):
    assert fetch_newer(url, tmp_path / "b") == []
    assert not (tmp_path / "b").exists()
    copy_steps(url, tmp_path / "a", 9, run="version_9")
    copy_steps(url, tmp_path / "a", 1, run="version_10")
    assert fetch_newer(url, tmp_path / "b") == []
    assert [path.name for path in (tmp_path / "b").glob("*_*[0-9]")] == ["version_10"]


def test_another_run_of_the_same_number_is_refused_and_changes_nothing(url, tmp_path):
    copy_steps(url, tmp_path / "a", 1)
    before = list_files(url)
    with pytest.raises(StorageError, match=r"has another run as version_0; expected resume auto"):
        Mirror(url).claim(save_step(tmp_path / "b", 2))
    assert list_files(url) == before
    # A fetched run is the same one.
    fetch_newer(url, tmp_path / "c")
    copy_steps(url, tmp_path / "c", 2)


def test_failed_copy_is_a_warning_and_the_next_one_has_all(tmp_path, capsys):
    url = f"file://{tmp_path}/mirror"
    blocked = tmp_path / "mirror" / "version_0" / "files"
    copier = copy_steps(url, tmp_path / "a", 1)
    blocked.rename(tmp_path / "away")
    blocked.touch()
    copier.copy(save_step(tmp_path / "a", 2))
    [warned] = capsys.readouterr().err.splitlines()
    assert warned.startswith(f"warning: checkpoint.mirror: {url}: cannot be written (NotADirectory")
    assert warned.endswith("; the next last.ckpt is tried again")
    blocked.unlink()
    (tmp_path / "away").rename(blocked)
    fetch_newer(url, tmp_path / "b")
    assert read_steps(tmp_path / "b") == (1, "1")
    copier.copy(save_step(tmp_path / "a", 3))
    fetch_newer(url, tmp_path / "b")
    assert read_steps(tmp_path / "b") == (3, "3")


def test_url_that_cannot_be_used_is_refused_in_one_line(tmp_path):
    folder = save_step(tmp_path / "a", 1)
    with pytest.raises(ValueError, match=r"checkpoint\.mirror: gopher://x: .*gopher"):
        Mirror("gopher://x")
    (tmp_path / "mirror").touch()
    with pytest.raises(
        StorageError, match=r"checkpoint\.mirror: file://.*: cannot be written \(NotADirectory"
    ):
        Mirror(f"file://{tmp_path}/mirror").claim(folder)


def test_state_may_name_only_files_of_a_run(url, tmp_path):
    copy_steps(url, tmp_path / "a", 1)
    fs, root = fsspec.url_to_fs(url)
    [path] = fs.ls(f"{root}/version_0/states", detail=False)
    state = json.loads(fs.cat_file(path))
    state["files"]["../../outside"] = state["files"]["metrics.csv"]
    content = json.dumps(state).encode()
    fs.pipe_file(f"{root}/version_0/states/00000002-{mirror.hash_name(content)}.json", content)
    [problem] = fetch_newer(url, tmp_path / "b")
    assert "names ../../outside, no file of a run" in problem
    assert not list(tmp_path.rglob("outside"))
    assert read_steps(tmp_path / "b") == (1, "1")


COPY_AT_EVERY_LINE = """
import shutil, sys
from pathlib import Path
import fsspec
from fsspec.implementations import local
from tests.helpers.interrupting import copy_at_every_line
from txl_lightning import files
from txl_lightning.checkpoints import mirror

# A file is copied in pieces.
shutil.COPY_BUFSIZE, shutil._USE_CP_SENDFILE = 1000, False

def upload(place):
    copier = mirror.Mirror(f"file://{place}/mirror")
    copier.claim(place / "a" / "version_0")
    copier.copy(place / "a" / "version_0")

def fetch(place):
    mirror.fetch_newer(f"file://{place}/mirror", place / "b")

fsspec.url_to_fs("file:///tmp")
action = {"upload": upload, "fetch": fetch}[sys.argv[1]]
copy_at_every_line(action, Path(sys.argv[2]), mirror, files, local, shutil)
"""


@pytest.mark.slow
@pytest.mark.parametrize("action", ["upload", "fetch"])
@pytest.mark.parametrize("n_before", [0, 2])
def test_process_killed_at_any_line_of_a_copy_leaves_only_whole_runs(
    tmp_path, processes, action, n_before
):
    """An upload of step 9 after some others, and a fetch over an older run or into no folder."""
    place = tmp_path / "place"
    url = f"file://{place}/mirror"
    copy_steps(url, place / "a", *range(1, n_before + 1))
    if action == "fetch":
        if n_before:
            shutil.copytree(place / "a", place / "b")
        copy_steps(url, place / "a", 9)
    save_step(place / "a", 9)
    done = processes.run([sys.executable, "-c", COPY_AT_EVERY_LINE, action, place], limit=600)
    assert done.returncode == 0, done.stderr
    killed = sorted(tmp_path.glob("place-*"))
    found = []
    assert len(killed) > 10
    for copy in killed:
        url = f"file://{copy}/mirror"
        root = copy / "b"
        if action == "fetch":
            # Without the mirror, only what was there: the fetched run appears at once.
            found.append(read_steps(root)[0] if list_versions(root) else 0)
        fetch_newer(url, root)
        if action == "upload":
            found.append(read_steps(root)[0] if list_versions(root) else 0)
        else:
            assert read_steps(root) == (9, "9")
        assert not list(root.glob(".*part-*"))
        # And the next copy is whole.
        if action == "upload" or os.environ.get("ATTACKS") == "full":
            copy_steps(url, copy / "a", 10)
            shutil.rmtree(root, ignore_errors=True)
            assert fetch_newer(url, root) == []
            assert read_steps(root) == (10, "10")
    # A folder that is behind is renamed before the new one gets its name.
    assert {*found} - {0} == {n_before, 9} - {0}
    assert found[-1] == 9


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_a_run_whose_manifest_is_lost_is_not_copied_and_stops_nothing(url, tmp_path, fault):
    copier = copy_steps(url, tmp_path / "root", 1)
    manifest = tmp_path / "root" / "version_0" / "checkpoints" / "last.ckpt.json"
    manifest.write_text("{")
    if fault == "missing":
        manifest.unlink()
    copier.copy(manifest.parents[1])
    fetch_newer(url, tmp_path / "there")
    assert read_steps(tmp_path / "there") == (1, "1")
