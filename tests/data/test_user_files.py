"""A user's own text: a file, three files, or a folder or tar of documents."""

import tarfile
from itertools import chain

import pytest

from txl_lightning.data import user_files
from txl_lightning.data.user_files import split_user_files
from txl_lightning.errors import DataError

FRACTIONS = (0.8, 0.1, 0.1)
ALL_TRAIN = (1.0, 0.0, 0.0)
SPLITS = ("train", "val", "test")


def texts(splits) -> dict[str, list[bytes]]:
    return {name: [b"".join(part.chunks()) for part in parts] for name, parts in splits.items()}


def write_tar(path, folder, mode: str = "w"):
    with tarfile.open(path, mode) as tar:
        # A tar may have its members in any order.
        for file in sorted(folder.rglob("*"), reverse=True):
            tar.add(file, file.relative_to(folder), recursive=False)
    return path


@pytest.fixture
def documents(write_files) -> list[bytes]:
    """Ten documents in two folders beside what is not one, in the order of their names."""
    written = {f"{'ab'[n % 2]}/{n}.txt": b"%d" % n * 10 for n in range(10)}
    others = {".hidden": b"x", "b/.git/config": b"x", "empty": b""}
    write_files(written | others, "texts")
    return [written[name] for name in sorted(written)]


@pytest.mark.parametrize("fractions", [(0.9, 0.05, 0.05), (0.5, 0.5, 0.0), ALL_TRAIN])
def test_one_file_is_cut_between_characters(write_files, tmp_path, fractions):
    text = ("aé✓🙂" * 37).encode()
    path = write_files({"a.txt": text}) / "a.txt"
    splits = texts(split_user_files([path], fractions, tmp_path))
    assert b"".join(splits[name][0] for name in SPLITS) == text
    for name, fraction in zip(SPLITS, fractions, strict=True):
        splits[name][0].decode()
        assert abs(len(splits[name][0]) - fraction * len(text)) <= 4


@pytest.mark.parametrize(
    ("sizes", "n_document"),
    [
        ([10] * 20, [16, 2, 2]),
        ([10] * 10, [8, 1, 1]),
        ([1000, 1, 1], [1, 1, 1]),
        ([1, 1, 1000], [1, 1, 1]),
    ],
)
def test_files_are_cut_between_files_and_each_split_gets_one(
    write_files, tmp_path, sizes, n_document
):
    files = {f"{n:02}.txt": b"x" * size for n, size in enumerate(sizes)}
    folder = write_files(files, "texts")
    splits = split_user_files([folder], FRACTIONS, tmp_path)
    assert [len(splits[name]) for name in SPLITS] == n_document
    assert [part.path.name for part in chain(*splits.values())] == list(files)
    only_train = split_user_files([folder], ALL_TRAIN, tmp_path)
    assert [len(slices) for slices in only_train.values()] == [len(sizes), 0, 0]


def test_three_files_are_train_val_and_test(write_files, tmp_path):
    folder = write_files({name: name.encode() for name in "xyz"})
    splits = split_user_files([folder / name for name in "xyz"], FRACTIONS, tmp_path)
    assert texts(splits) == {"train": [b"x"], "val": [b"y"], "test": [b"z"]}


@pytest.mark.parametrize("kind", ["folder", "tar"])
@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("wiki.train.tokens", "wiki.dev.tokens", "wiki.test.tokens"),
        ("train/1", "val/1", "test/1"),
    ],
)
def test_names_of_files_give_their_splits(write_files, tmp_path, names, kind):
    path = write_files({f"books/{name}": name.encode() for name in names}, "texts")
    if kind == "tar":
        path = write_tar(tmp_path / "books.tar", path)
    splits = texts(split_user_files([path], FRACTIONS, tmp_path / "data"))
    assert splits == dict(zip(SPLITS, [[name.encode()] for name in names], strict=True))


def test_folder_gives_its_files_but_hidden_ones_links_and_our_own(write_files, tmp_path, documents):
    write_files({"data/prepared/ids": b"x", "data/downloads/zip": b"x"}, "texts")
    (tmp_path / "texts" / "link").symlink_to(tmp_path / "texts" / "a" / "0.txt")
    splits = split_user_files([tmp_path / "texts"], FRACTIONS, tmp_path / "texts" / "data")
    assert [*chain(*texts(splits).values())] == documents


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_tar_gives_its_files_and_is_unpacked_once(
    write_files, tmp_path, documents, monkeypatch, mode
):
    path = tmp_path / ("texts.tar" + mode[1:].replace(":", "."))
    write_tar(path, tmp_path / "texts", mode)
    splits = split_user_files([path], FRACTIONS, tmp_path)
    assert [*chain(*texts(splits).values())] == documents
    with monkeypatch.context() as patch:
        patch.setattr(user_files, "unpack_tar", lambda *_: pytest.fail("unpacked again"))
        assert split_user_files([path], FRACTIONS, tmp_path) == splits
    write_tar(path, write_files({"other.txt": b"changed"}, "others"), mode)
    assert texts(split_user_files([path], ALL_TRAIN, tmp_path))["train"] == [b"changed"]


@pytest.mark.parametrize(
    ("files", "paths", "message"),
    [
        ({}, ["no.txt"], "no.txt: no such file"),
        ({"empty.txt": b""}, ["empty.txt"], "empty.txt: there is no text in it"),
        ({"folder/empty": b""}, ["folder"], "folder: there is no text in it"),
        ({"a.txt.gz": b"x"}, ["a.txt.gz"], "a.txt.gz: packed; unpack it first"),
        ({"a": b"x"}, ["a", "a"], r"data\.path: invalid number of files 2; expected one, or three"),
        (
            dict.fromkeys(("train.txt", "val.txt", "test.txt", "README"), b"x"),
            [""],
            "README is not in train, val or test, but others are",
        ),
    ],
)
def test_path_that_gives_no_splits_is_refused(write_files, tmp_path, files, paths, message):
    folder = write_files(files, "texts")
    with pytest.raises(DataError, match=message):
        split_user_files([folder / path for path in paths], FRACTIONS, tmp_path)
