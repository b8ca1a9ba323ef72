"""Places that cannot be written are found before the work."""

import os

import pytest

from txl_lightning.errors import StorageError
from txl_lightning.files import check_file_writable, check_folder_writable


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("folder", "out: invalid .*folder, a folder; expected a file"),
        ("none/file", "out: .*none/file: there is no folder .*none"),
        ("file/file", "out: .*file/file: there is no folder .*file"),
    ],
)
def test_a_file_that_could_not_be_written_is_one_line(tmp_path, path, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=message) as caught:
        check_file_writable("out", tmp_path / path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [None, "file", "/dev/null"])
def test_a_writable_place_is_left_as_it_is(tmp_path, path):
    check_file_writable("out", path and tmp_path / path)
    assert os.listdir(tmp_path) == []


def test_a_folder_is_made_unless_a_file_has_its_place(tmp_path):
    check_folder_writable("out", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "c").touch()
    with pytest.raises(StorageError, match=r"out: .*c: cannot be written"):
        check_folder_writable("out", tmp_path / "c")
