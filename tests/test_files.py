"""Paths that cannot be written are refused before any work; a pipe is written to."""

import os
import stat
from pathlib import Path

import pytest

from txl_lightning import files
from txl_lightning.errors import StorageError
from txl_lightning.files import (
    check_file_writable,
    check_folder_writable,
    create_folder,
    require_local_path,
    write_text,
)


def test_a_path_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path):
    (tmp_path / "file").touch()
    for path in (None, "/dev/null", tmp_path / "file", tmp_path / "new"):
        check_file_writable("out", path)
    for path, message in (
        (tmp_path, "out: invalid .*, a folder; expected a file$"),
        (tmp_path / "none" / "file", "out: .*none/file: there is no folder .*none$"),
        (tmp_path / "file" / "file", "out: .*file/file: there is no folder .*file$"),
    ):
        with pytest.raises(StorageError, match=message):
            check_file_writable("out", path)
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_is_created_unless_a_file_has_its_path(tmp_path):
    check_folder_writable("out", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "c").touch()
    with pytest.raises(StorageError, match=r"out: .*c: cannot be written"):
        check_folder_writable("out", tmp_path / "c")


@pytest.mark.parametrize("name", ["books", "books[1].zip"])
def test_what_a_killed_process_has_left_of_a_folder_is_removed(tmp_path, name):
    (tmp_path / f".{name}.part-killed").mkdir()
    create_folder(tmp_path / name, lambda part: (part / "1.txt").touch())
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.lock"}


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_text("text", path)
    assert (os.read(reader, 9), stat.S_ISFIFO(path.stat().st_mode)) == (b"text", True)
    os.close(reader)


def test_a_name_that_is_not_utf8_stays_printable_in_a_text(tmp_path):
    write_text(os.fsdecode(b"caf\xe9") + ": ünchanged", tmp_path / "page")
    assert (tmp_path / "page").read_text(encoding="utf-8") == "caf\\udce9: ünchanged"


def test_a_result_is_cached_only_if_none_of_its_files_has_just_been_changed(tmp_path, monkeypatch):
    old, new = (tmp_path / name for name in ("old", "new"))
    old.touch()
    new.touch()
    while new.stat().st_ctime_ns == old.stat().st_ctime_ns:
        new.touch()
    counts = iter(range(9))

    def compute(since: Path, age: int) -> int:
        monkeypatch.setattr(files.time, "time_ns", lambda: since.stat().st_ctime_ns + age)
        return files.cache_result("count", [old, new], tmp_path, lambda: next(counts))

    # The new file may be changed again without another time stamp.
    assert [compute(old, files.MIN_AGE + 1) for _ in range(2)] == [0, 1]
    assert [compute(new, files.MIN_AGE + 1) for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://x", "http://127.0.0.1:9/a.ckpt"])
def test_a_url_is_no_path_and_a_colon_is_part_of_a_name(url):
    with pytest.raises(ValueError, match=f"^out: invalid {url}; expected a path on this machine"):
        check_file_writable("out", url)
    with pytest.raises(ValueError, match=r"^out: .* not a URL; use a mirror$"):
        require_local_path("out", url, "; use a mirror")
    assert str(require_local_path("out", "runs/a:b")) == "runs/a:b"
