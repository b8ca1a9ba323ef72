"""One's own text: a file, three files, or a folder or tar of documents."""

import io
import tarfile
from itertools import chain

import pytest

from txl_lightning.data import fingerprint, user_files
from txl_lightning.data.documents import whole_file
from txl_lightning.data.user_files import split_by_fractions, split_user_files
from txl_lightning.errors import DataError

FRACTIONS = (0.8, 0.1, 0.1)


def joined(spans) -> bytes:
    return b"".join(chunk for span in spans for chunk in span.chunks())


def texts(splits) -> dict[str, list[bytes]]:
    return {name: [joined([span]) for span in spans] for name, spans in splits.items()}


@pytest.mark.parametrize("fractions", [(0.9, 0.05, 0.05), (0.5, 0.5, 0.0), (1.0, 0.0, 0.0)])
def test_one_file_is_cut_between_characters_and_nothing_is_lost(tmp_path, fractions):
    text = ("aé✓🙂" * 37).encode()
    path = tmp_path / "a.txt"
    path.write_bytes(text)
    parts = split_user_files([path], fractions, tmp_path)
    assert b"".join(joined(parts[name]) for name in ("train", "val", "test")) == text
    for name, fraction in zip(("train", "val", "test"), fractions, strict=True):
        joined(parts[name]).decode()
        assert abs(len(joined(parts[name])) - fraction * len(text)) <= 4


def test_many_files_are_cut_between_files(tmp_path):
    files = [tmp_path / f"{n}.py" for n in range(20)]
    for n, path in enumerate(files):
        path.write_bytes(bytes([n]) * 10)
    parts = split_by_fractions([span for path in files for span in whole_file(path)], FRACTIONS)
    assert [len(parts[name]) for name in ("train", "val", "test")] == [16, 2, 2]
    assert joined(parts["val"]) == bytes([16]) * 10 + bytes([17]) * 10


def test_three_files_are_train_val_and_test(tmp_path):
    paths = [tmp_path / name for name in ("x", "y", "z")]
    for path in paths:
        path.write_text(path.name * 3)
    assert texts(split_user_files(paths, FRACTIONS, tmp_path)) == {
        "train": [b"xxx"],
        "val": [b"yyy"],
        "test": [b"zzz"],
    }
    with pytest.raises(DataError, match=r"data\.path: invalid number of files 2"):
        split_user_files(paths[:2], FRACTIONS, tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("wiki.train.tokens", "wiki.dev.tokens", "wiki.test.tokens"),
        ("train/1", "val/1", "test/1"),
    ],
)
def test_a_folder_may_name_its_splits(tmp_path, names):
    for name in names:
        path = tmp_path / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    found = texts(split_user_files([tmp_path / "text"], FRACTIONS, tmp_path))
    assert [found[name] for name in ("train", "val", "test")] == [[n.encode()] for n in names]


def test_a_tar_is_looked_through_once(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "SETTLED", 0)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in "abc":
            tar.addfile(tarfile.TarInfo(name) if name == "b" else sized(name), io.BytesIO(b"x"))
    first = split_user_files([tmp_path / "a.tar"], (0.5, 0.0, 0.5), tmp_path)
    monkeypatch.setattr(user_files, "tar_spans", lambda _: pytest.fail("looked through again"))
    assert split_user_files([tmp_path / "a.tar"], (0.5, 0.0, 0.5), tmp_path) == first


def sized(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = 1
    return info


def test_a_tar_may_name_its_splits_too(tmp_path):
    with tarfile.open(tmp_path / "books.tar.gz", "w:gz") as tar:
        for name in ("books/test/1.txt", "books/train/1.txt", "books/train/2.txt", "books/val/1"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    found = texts(split_user_files([tmp_path / "books.tar.gz"], FRACTIONS, tmp_path))
    assert found["train"] == [b"books/train/1.txt", b"books/train/2.txt"]
    assert found["test"] == [b"books/test/1.txt"]


def test_a_document_outside_the_named_splits_is_not_read_in_passing(tmp_path):
    for name in ("train.txt", "val.txt", "test.txt", "README"):
        (tmp_path / name).write_text(name)
    with pytest.raises(DataError, match="README is not in train, val or test, but others are"):
        split_user_files([tmp_path], FRACTIONS, tmp_path)


def documents(folder) -> dict[str, bytes]:
    """Ten documents in two folders, and what is not one."""
    written = {f"{'ab'[n % 2]}/{n}.txt": b"%d" % n * 10 for n in range(10)}
    for name, text in {**written, ".hidden": b"x", "b/.git/config": b"x", "empty": b""}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    (folder / "link").symlink_to(folder / "a" / "0.txt")
    return written


def test_a_folder_holds_a_document_in_each_file(tmp_path):
    written = documents(tmp_path / "texts")
    found = texts(split_user_files([tmp_path / "texts"], FRACTIONS, tmp_path))
    assert [*chain(*found.values())] == [written[name] for name in sorted(written)]
    assert {name: len(found[name]) for name in found} == {"train": 8, "val": 1, "test": 1}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_a_tar_holds_a_document_in_each_file(tmp_path, mode):
    written = documents(tmp_path / "texts")
    path = tmp_path / ("texts.tar" + mode[1:].replace(":", "."))
    with tarfile.open(path, mode) as tar:
        for name in sorted(written, reverse=True):
            info = tarfile.TarInfo(name)
            info.size = len(written[name])
            tar.addfile(info, io.BytesIO(written[name]))
    found = texts(split_user_files([path], FRACTIONS, tmp_path))
    assert [*chain(*found.values())] == [written[name] for name in sorted(written)]


def test_what_we_keep_in_a_folder_is_not_its_text(tmp_path):
    written = documents(tmp_path / "texts")
    root = tmp_path / "texts" / "data"
    (root / "prepared" / "abc").mkdir(parents=True)
    (root / "prepared" / "abc" / "train.ids").write_bytes(b"ids")
    found = texts(split_user_files([tmp_path / "texts"], FRACTIONS, root))
    assert [*chain(*found.values())] == [written[name] for name in sorted(written)]


@pytest.mark.parametrize("sizes", [[10] * 10, [1000, 1, 1], [1, 1, 1000], [5, 5, 5]])
def test_every_split_gets_a_document_where_there_are_three(tmp_path, sizes):
    for n, size in enumerate(sizes):
        (tmp_path / f"{n}.txt").write_bytes(b"x" * size)
    found = split_user_files([tmp_path], (0.9, 0.05, 0.05), tmp_path / "data")
    assert all(found.values())
    names = [span.path.name for split in ("train", "val", "test") for span in found[split]]
    assert names == [f"{n}.txt" for n in range(len(sizes))]
    whole_text = split_user_files([tmp_path], (1.0, 0.0, 0.0), tmp_path / "data")
    assert [len(spans) for spans in whole_text.values()] == [len(sizes), 0, 0]


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no\.txt: no such file"):
        split_user_files([tmp_path / "no.txt"], FRACTIONS, tmp_path)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match=r"empty\.txt: the file is empty"):
        split_user_files([tmp_path / "empty.txt"], FRACTIONS, tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"folder: there is no text in it"):
        split_user_files([tmp_path / "folder"], FRACTIONS, tmp_path)
    (tmp_path / "a.txt.gz").write_bytes(b"x")
    with pytest.raises(DataError, match=r"a\.txt\.gz: packed; unpack it first"):
        split_user_files([tmp_path / "a.txt.gz"], FRACTIONS, tmp_path)
