"""A user's own text: a file, three files, or a folder or tar of documents."""

import io
import tarfile
from itertools import chain

import pytest

from txl_lightning.data import user_files
from txl_lightning.data.documents import whole_file
from txl_lightning.data.user_files import split_by_fractions, split_user_files
from txl_lightning.errors import DataError

FRACTIONS = (0.8, 0.1, 0.1)
NAMES = [
    ("train.txt", "valid.txt", "test.txt"),
    ("wiki.train.tokens", "wiki.dev.tokens", "wiki.test.tokens"),
    ("train/1", "val/1", "test/1"),
]


def joined(slices) -> bytes:
    return b"".join(chunk for part in slices for chunk in part.chunks())


def texts(splits) -> dict[str, list[bytes]]:
    return {name: [joined([part]) for part in slices] for name, slices in splits.items()}


def write_files(folder, files: dict[str, bytes]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)


def write_tar(path, files: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))


@pytest.fixture
def documents(tmp_path) -> list[bytes]:
    """Ten documents in two folders beside what is not one, in the order of their names."""
    written = {f"{'ab'[n % 2]}/{n}.txt": b"%d" % n * 10 for n in range(10)}
    hidden = {".hidden": b"x", "b/.git/config": b"x", "empty": b"", "data/prepared/ids": b"x"}
    write_files(tmp_path / "texts", written | hidden)
    (tmp_path / "texts" / "link").symlink_to(tmp_path / "texts" / "a" / "0.txt")
    return [written[name] for name in sorted(written)]


@pytest.mark.parametrize("fractions", [(0.9, 0.05, 0.05), (0.5, 0.5, 0.0), (1.0, 0.0, 0.0)])
def test_one_file_is_cut_between_characters(tmp_path, fractions):
    text = ("aé✓🙂" * 37).encode()
    write_files(tmp_path, {"a.txt": text})
    splits = split_user_files([tmp_path / "a.txt"], fractions, tmp_path)
    assert b"".join(joined(splits[name]) for name in ("train", "val", "test")) == text
    for part, fraction in zip(splits.values(), fractions, strict=True):
        joined(part).decode()
        assert abs(len(joined(part)) - fraction * len(text)) <= 4


def test_many_files_are_cut_between_files(tmp_path):
    write_files(tmp_path, {f"{n}.py": bytes([n]) * 10 for n in range(20)})
    slices = [part for n in range(20) for part in whole_file(tmp_path / f"{n}.py")]
    splits = split_by_fractions(slices, FRACTIONS)
    assert [len(part) for part in splits.values()] == [16, 2, 2]
    assert joined(splits["val"]) == bytes([16]) * 10 + bytes([17]) * 10


@pytest.mark.parametrize("sizes", [[10] * 10, [1000, 1, 1], [1, 1, 1000], [5, 5, 5]])
def test_every_split_gets_a_document_where_there_are_three(tmp_path, sizes):
    write_files(tmp_path, {f"{n}.txt": b"x" * size for n, size in enumerate(sizes)})
    splits = split_user_files([tmp_path], (0.9, 0.05, 0.05), tmp_path / "data")
    assert all(splits.values())
    names = [part.path.name for part in chain(*splits.values())]
    assert names == [f"{n}.txt" for n in range(len(sizes))]
    only_train = split_user_files([tmp_path], (1.0, 0.0, 0.0), tmp_path / "data")
    assert [len(slices) for slices in only_train.values()] == [len(sizes), 0, 0]


def test_three_files_are_train_val_and_test(tmp_path):
    write_files(tmp_path, {name: name.encode() for name in "xyz"})
    paths = [tmp_path / name for name in "xyz"]
    splits = split_user_files(paths, FRACTIONS, tmp_path)
    assert texts(splits) == {"train": [b"x"], "val": [b"y"], "test": [b"z"]}
    with pytest.raises(DataError, match=r"data\.path: invalid number of files 2; expected one, or"):
        split_user_files(paths[:2], FRACTIONS, tmp_path)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_names_of_files_give_their_splits(tmp_path, names, kind):
    files = {f"books/{name}": name.encode() for name in names}
    write_files(tmp_path / "folder", files)
    write_tar(tmp_path / "books.tar", files)
    path = tmp_path / ("folder" if kind == "folder" else "books.tar")
    found = texts(split_user_files([path], FRACTIONS, tmp_path / "data"))
    assert [found[name] for name in ("train", "val", "test")] == [[n.encode()] for n in names]


def test_a_document_outside_the_named_splits_is_refused(tmp_path):
    write_files(tmp_path, dict.fromkeys(("train.txt", "val.txt", "test.txt", "README"), b"x"))
    with pytest.raises(DataError, match="README is not in train, val or test, but others are"):
        split_user_files([tmp_path], FRACTIONS, tmp_path)


def test_a_folder_has_a_document_in_each_file_but_hidden_ones_links_and_our_own(
    tmp_path, documents
):
    splits = split_user_files([tmp_path / "texts"], FRACTIONS, tmp_path / "texts" / "data")
    assert [*chain(*texts(splits).values())] == documents
    assert {name: len(slices) for name, slices in splits.items()} == {
        "train": 8,
        "val": 1,
        "test": 1,
    }


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_a_tar_has_a_document_in_each_file_and_is_unpacked_once(
    tmp_path, documents, monkeypatch, mode
):
    path = tmp_path / ("texts.tar" + mode[1:].replace(":", "."))
    files = {f"{n}.txt": text for n, text in enumerate(documents)}
    write_tar(path, dict(reversed(files.items())) | {".hidden": b"x", "empty": b""}, mode)
    splits = split_user_files([path], FRACTIONS, tmp_path)
    assert [*chain(*texts(splits).values())] == documents
    with monkeypatch.context() as patch:
        patch.setattr(user_files, "unpack_tar", lambda *_: pytest.fail("unpacked again"))
        assert split_user_files([path], FRACTIONS, tmp_path) == splits
    write_tar(path, {"other.txt": b"changed"}, mode)
    assert joined(split_user_files([path], (1.0, 0.0, 0.0), tmp_path)["train"]) == b"changed"


def test_a_path_without_text_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    write_files(tmp_path, {"empty.txt": b"", "a.txt.gz": b"x"})
    for name, reason in {
        "no.txt": "no such file",
        "empty.txt": "there is no text in it",
        "folder": "there is no text in it",
        "a.txt.gz": "packed; unpack it first",
    }.items():
        with pytest.raises(DataError, match=f"{name}: {reason}"):
            split_user_files([tmp_path / name], FRACTIONS, tmp_path)
