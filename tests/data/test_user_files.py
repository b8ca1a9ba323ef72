"""A user's own text: a file, three files, or a folder or archive; unsafe ones are refused."""

import bz2
import gzip
import json
import lzma
import os
import random
import stat
import tarfile
import zipfile
from codecs import BOM_UTF8
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path

import pytest

from txl_lightning.commands.given_texts import find_kind
from txl_lightning.data import archives
from txl_lightning.data.archives import OWN_FOLDERS
from txl_lightning.data.corpora import CORPORA
from txl_lightning.data.encoding import prepare_folder
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.text_files import has_documents, split_user_files
from txl_lightning.errors import DataError, StorageError

FRACTIONS = (0.8, 0.1, 0.1)
ALL_TRAIN = (1.0, 0.0, 0.0)
SPLITS = ("train", "val", "test")
# By default gzip writes the time into the file.
compress_gzip = partial(gzip.compress, mtime=0)
COMPRESSIONS = {"": bytes, ".gz": compress_gzip, ".bz2": bz2.compress, ".xz": lzma.compress}


def texts(splits) -> dict[str, list[bytes]]:
    return {name: [b"".join(part.chunks()) for part in parts] for name, parts in splits.items()}


def entry(name, content=b"", **fields) -> bytes:
    info = tarfile.TarInfo(name)
    for field, value in ({"size": len(content)} | fields).items():
        setattr(info, field, value)
    raw = info.tobuf(tarfile.GNU_FORMAT) + content
    return raw + bytes(-len(raw) % 512)


def make_tar(*entries: bytes) -> bytes:
    return b"".join(entries) + bytes(1024)


DAMAGED = r"damaged, or not an archive \("
# The members after a file, and the error.
REFUSED_TARS = {
    "parent folder": (entry("../evil", b"x"), rf"{DAMAGED}.*outside"),
    "parent folder inside": (entry("books/../../evil", b"x"), rf"{DAMAGED}.*outside"),
    "symbolic link": (entry("b", type=tarfile.SYMTYPE, linkname="/etc/passwd"), DAMAGED),
    "hard link": (entry("b", type=tarfile.LNKTYPE, linkname="../a"), rf"{DAMAGED}.*outside"),
    "device": (entry("b", type=tarfile.CHRTYPE, devmajor=1, devminor=5), rf"{DAMAGED}.*special"),
    "pipe": (entry("b", type=tarfile.FIFOTYPE), rf"{DAMAGED}.*special"),
    "size beyond memory": (entry("b", size=1 << 70), DAMAGED),
    "header beyond memory": (entry("b", size=1 << 70, type=tarfile.XHDTYPE), DAMAGED),
    "bad line": (
        entry("1.jsonl", b'{"text": "x"}\n{}'),
        "1.jsonl: line 2 has no text: there is no key",
    ),
}


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


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("train.txt", "valid.txt", "test.txt"), "folder"),
        (("wiki.train.tokens", "wiki.dev.tokens", "wiki.test.tokens"), "folder"),
        (("train/1", "val/1", "test/1"), "folder"),
        (("train/1", "val/1", "test/1"), "tar"),
        (("a", "b", "c"), "files"),
    ],
)
def test_three_files_or_names_of_files_give_the_splits(write_files, tmp_path, names, kind):
    folder = write_files({f"books/{name}": name.encode() for name in names}, "texts")
    paths = [folder / "books" / name for name in names] if kind == "files" else [folder]
    if kind == "tar":
        paths = [tmp_path / "books.tar"]
        paths[0].write_bytes(make_tar(*(entry(f"books/{n}", n.encode()) for n in names)))
    splits = texts(split_user_files(paths, FRACTIONS, tmp_path / "data"))
    assert splits == dict(zip(SPLITS, [[name.encode()] for name in names], strict=True))


def test_archives_in_a_folder_give_the_splits(write_files, tmp_path):
    files = {f"{name}.ZIP": make_zip({"0.txt": name.encode()}) for name in SPLITS}
    splits = split_user_files([write_files(files, "books")], FRACTIONS, tmp_path / "data")
    assert texts(splits) == {name: [name.encode()] for name in SPLITS}


def test_backslashes_of_a_zip_separate_folders(write_files, tmp_path):
    names = {split: f"b\\{split}\\0.txt" for split in SPLITS}
    members = {"b\\": b""} | {name: split.encode() for split, name in names.items()}
    path = write_files({"a.zip": make_zip(members)}) / "a.zip"
    splits = split_user_files([path], FRACTIONS, tmp_path / "data")
    assert texts(splits) == {name: [name.encode()] for name in SPLITS}
    assert splits["train"][0].path.parent.name == "train"


def test_a_file_of_no_split_is_refused_beside_those_of_all_splits(write_files, tmp_path):
    names = ("train.txt", "val.txt", "test.txt", "other.txt")
    folder = write_files(dict.fromkeys(names, b"x"), "texts")
    with pytest.raises(DataError, match=r"other\.txt is not in train, val or test, but others are"):
        split_user_files([folder], FRACTIONS, tmp_path)


@pytest.mark.parametrize(
    ("names", "is_told"),
    [(("te.txt", "tr.txt", "va.txt"), True), (("1.txt", "2.txt", "3.txt", "4.txt"), False)],
)
def test_three_files_of_other_names_are_told_their_splits(
    write_files, tmp_path, capsys, names, is_told
):
    folder = write_files(dict.fromkeys(names, b"abc"), "texts")
    split_user_files([folder], FRACTIONS, tmp_path)
    shown = capsys.readouterr().err
    assert ("train te.txt, val tr.txt, test va.txt" in shown) == is_told == bool(shown)


def test_folder_gives_each_of_its_files_once_except_hidden_ones_and_our_own(write_files):
    documents = {f"{'ab'[n % 2]}/{n}.txt": b"%d" % n * 10 for n in range(10)}
    others = (".hidden", "b/.git/config", "data/prepared/ids", "data/downloads/zip")
    others += ("data/tiny_shakespeare/input.txt", "data/ptb/ptb.train.txt")
    folder = write_files(documents | dict.fromkeys(others, b"x") | {"empty": b""}, "texts")
    (folder / "link").symlink_to(folder / "a" / "0.txt")
    (folder / "b" / "loop").symlink_to(folder)
    own = {"run/run.json": b'{"max_steps": 9}', "run/metrics.csv": b"step"}
    own |= {"store/manifest.json": b'{"n_document": {}}', "store/vocab.json": b"{}"}
    own |= {"b/sweep/journal.log": b'{"op_code": 0}', "b/sweep/000/log.txt": b"step 1"}
    write_files(own, "texts")
    splits = split_user_files([folder], FRACTIONS, folder / "data")
    assert [*chain(*texts(splits).values())] == [documents[name] for name in sorted(documents)]


def test_a_folder_that_this_package_writes_is_a_text_where_it_is_given_itself(write_files):
    for name in ("downloads", *OWN_FOLDERS[2:]):
        folder = write_files({f"data/{name}/a.txt": b"a"}) / "data"
        assert texts(split_user_files([folder / name], ALL_TRAIN, folder))["train"] == [b"a"]
    assert {corpus.folder for corpus in CORPORA.values()} - {""} <= {*OWN_FOLDERS}
    assert {*CORPORA} - {"python_source"} <= {*OWN_FOLDERS}


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("run.json", b'{"max_steps": 9}', "a run"),
        ("manifest.json", b'{"n_document": {}}', "a prepared text, which is given as data.store"),
        ("journal.log", b'{"op_code": 0}', "a sweep"),
    ],
)
def test_a_run_a_store_and_a_sweep_are_no_text(write_files, name, content, kind):
    folder = write_files({name: content, "a.txt": b"a"}, "own")
    with pytest.raises(DataError, match=f"own: {kind}, as it has {name}; expected a text file, a"):
        split_user_files([folder], ALL_TRAIN, folder / "data")


def test_links_in_a_folder_are_followed_and_those_to_nothing_named(write_files, capsys):
    real = write_files({"1.txt": b"one", "more/2.txt": b"two"}, "real")
    links = write_files({"own.txt": b"own"}, "links")
    (links / "1.txt").symlink_to(real / "1.txt")
    (links / "more").symlink_to(real / "more")
    (links / "again").symlink_to(real / "more")
    (links / "bad").symlink_to("nowhere")
    (links / "itself").symlink_to("itself")
    os.mkfifo(links / "pipe")
    (links / "linked.tar").symlink_to("pipe")
    splits = split_user_files([links], ALL_TRAIN, links / "data")
    assert sorted(texts(splits)["train"]) == [b"one", b"own", b"two"]
    skipped = "bad (a link to nothing), itself (a link to nothing), pipe (a special file)"
    assert f"skipped: {skipped} (3)" in capsys.readouterr().err


def test_a_run_json_of_another_program_is_a_text(write_files):
    files = {"a/run.json": b"{}", "b/manifest.json": b"[]", "b/c": b"c", "d/journal.log": b"d"}
    folder = write_files(files, "texts")
    assert len(split_user_files([folder], ALL_TRAIN, folder / "data")["train"]) == 4
    assert find_kind(folder / "b") == "path"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "ab".encode("utf-16"),
            r"UTF-16 \(iconv -f UTF-16 -t UTF-8\); expected text in",
        ),
        ("ab".encode("utf-32"), r"UTF-32 \(iconv"),
        (b"%PDF-1.4\n\xff", r"a PDF \(pdftotext\); expected text in UTF-8"),
        (b"PAR1\x15\0", "a binary file; expected text in UTF-8"),
        ("é".encode("latin-1"), r"not in UTF-8 \(if it is Latin-1: iconv"),
    ],
)
def test_a_file_that_is_not_text_is_refused_with_what_it_is(write_files, content, message):
    path = write_files({"a": content}, "texts") / "a"
    with pytest.raises(DataError, match=f"a: {message}"):
        split_user_files([path], FRACTIONS, path.parent)
    # As data.vocab bytes asks for.
    assert split_user_files([path], ALL_TRAIN, path.parent, any_bytes=True)["train"]


def test_a_byte_order_mark_is_no_text_but_bytes_are_read_as_they_are(write_files, tmp_path):
    files = {"1": BOM_UTF8 + b"one\n", "2": BOM_UTF8, "3": b"3" + BOM_UTF8}
    folder = write_files(files, "texts")
    splits = split_user_files([folder], ALL_TRAIN, tmp_path)
    assert texts(splits)["train"] == [b"one\n", files["3"]]
    splits = split_user_files([folder], ALL_TRAIN, tmp_path, any_bytes=True)
    assert texts(splits)["train"] == [*files.values()]


@pytest.mark.parametrize("unit", ["none", "lines"])
def test_latin_1_after_the_first_bytes_is_refused_where_it_is_read(write_files, tmp_path, unit):
    path = write_files({"a": b"to be\n" * 2000 + b"caf\xe9\n" * 9}, "texts") / "a"
    config = DataConfig(path=str(path), data_dir=str(tmp_path), document_unit=unit)
    with pytest.raises(DataError, match=r"a: byte 12003 is not UTF-8 text; if it is Latin-1: ico"):
        config.open_text()
    with pytest.raises(DataError, match="byte 12003 is not UTF-8 text"):
        prepare_folder(config.source.find_encoding(), tmp_path / "out", tmp_path)
    assert replace(config, vocab="bytes").open_text()


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_tar_gives_its_files_is_unpacked_once_and_refused_if_truncated(
    tmp_path, monkeypatch, ending
):
    path = tmp_path / f"texts.tar{ending}"
    compress = COMPRESSIONS[ending]
    letters = os.urandom(20_000).hex().encode()
    members = {"z.txt": b"z\n", "deep/" * 18 + "é.txt": letters, "empty": b""}
    entries = [entry(name, text, mode=0o4755) for name, text in members.items()]
    whole = compress(make_tar(entry("deep", type=tarfile.DIRTYPE), entry("z.txt", b"1"), *entries))
    for length in (0, 300, 5000):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=f"texts.tar{ending}: {DAMAGED}"):
            split_user_files([path], ALL_TRAIN, tmp_path)
    path.write_bytes(whole)
    splits = split_user_files([path], ALL_TRAIN, tmp_path)
    assert texts(splits)["train"] == [members["deep/" * 18 + "é.txt"], b"z\n"]
    assert not splits["train"][0].path.stat().st_mode & 0o4000
    with monkeypatch.context() as patch:
        patch.setattr(archives, "unpack_archive", lambda *_, **__: pytest.fail("unpacked again"))
        assert split_user_files([path], ALL_TRAIN, tmp_path) == splits


def test_archive_with_other_content_of_the_same_size_and_time_is_unpacked_again(tmp_path):
    path = tmp_path / "texts.tar"
    for text in (b"first", b"other"):
        path.write_bytes(make_tar(entry("a.txt", text)))
        os.utime(path, (1e9, 1e9))
        assert texts(split_user_files([path], ALL_TRAIN, tmp_path))["train"] == [text]


@pytest.mark.parametrize(
    ("kind", "place"),
    [*((kind, "a.tar") for kind in REFUSED_TARS), ("parent folder", "folder/a.tar")],
)
def test_unsafe_or_unusable_tar_is_refused_and_stays_inside(write_files, tmp_path, kind, place):
    members, message = REFUSED_TARS[kind]
    top = place.split("/")[0]
    folder = write_files({place: make_tar(entry("a", b"a"), members)})
    with pytest.raises(DataError, match=message):
        split_user_files([folder / top], FRACTIONS, tmp_path / "data")
    assert set(os.listdir(tmp_path)) == {top, "data"}


def make_zip(members: dict[str, bytes], mode: int = 0) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode << 16
            bundle.writestr(info, content)
    return file.getvalue()


def make_lines(*texts: str) -> bytes:
    return "".join(f"{json.dumps({'text': text, 'n': 1})}\n" for text in texts).encode()


@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("a.zip", make_zip({"b/1.txt": b"one", "b/2.txt": b"two", "empty": b""}), ["one", "two"]),
        ("a.txt.gz", compress_gzip(b"one\ntwo"), ["one\ntwo"]),
        ("a.txt.bz2", bz2.compress(b"one\ntwo"), ["one\ntwo"]),
        ("a.txt.xz", lzma.compress(b"one\ntwo"), ["one\ntwo"]),
        ("a.TXT.GZ", compress_gzip(b"one\ntwo"), ["one\ntwo"]),
        ("A.ZIP", make_zip({"b/1.TXT.XZ": b"x", "2.txt": b"two"}), ["two", "x"]),
        ("A.TAR.GZ", compress_gzip(make_tar(entry("b", b"one"))), ["one"]),
        ("a.jsonl", make_lines("one", "", "zwöi") + b"\n", ["one", "zwöi"]),
        ("a.JSON.GZ", compress_gzip(make_lines("one", "two")), ["one", "two"]),
        ("a.ndjson.xz", lzma.compress(make_lines("one", "two")), ["one", "two"]),
        ("A.zip", make_zip({"1.NDJSON": make_lines("one", "2"), "2": b"!"}), ["one", "2", "!"]),
        ("a.jsonl.gz", compress_gzip(make_lines("one", "two")), ["one", "two"]),
        ("a.zip", make_zip({"1.jsonl": make_lines("one", "2"), "2": b"!"}), ["one", "2", "!"]),
        ("a/1.jsonl", make_lines("one", "two"), ["one", "two"]),
        ("a/1.zip", make_zip({"b/1.txt": b"one"}), ["one"]),
    ],
)
def test_packed_files_and_json_lines_give_their_texts(
    write_files, tmp_path, name, content, documents
):
    path = write_files({name: content}) / name.split("/")[0]
    splits = split_user_files([path], ALL_TRAIN, tmp_path / "data")
    assert [text.decode() for text in texts(splits)["train"]] == documents
    is_text = name.lower().startswith("a.txt")
    assert has_documents(path, tmp_path / "data") is (not is_text)
    three = split_user_files([path] * 3, FRACTIONS, tmp_path / "data")
    assert [*map(len, three.values())] == [len(documents)] * 3


def test_files_that_are_not_text_are_skipped_and_named(write_files, tmp_path, capfd):
    picture = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
    files = {f"{n}.png": picture for n in range(6)} | {"a.txt": b"a", "latin.txt": b"caf\xe9"}
    files["nothing.txt"] = b""
    folder = write_files(files, "texts")
    # Archives within archives would grow without limit.
    (folder / "b.zip").write_bytes(make_zip({"b.txt": b"b", "c.zip": make_zip({"c": b"c"})}))
    splits = split_user_files([folder], ALL_TRAIN, tmp_path / "data")
    assert texts(splits)["train"] == [b"a", b"b"]
    [line] = capfd.readouterr().err.splitlines()
    expected = ", ".join(f"{n}.png (a binary file)" for n in range(5)) + ", ... (9)"
    assert line == f"warning: {folder}: skipped: {expected}"
    # As data.vocab bytes asks for.
    splits = split_user_files([folder], ALL_TRAIN, tmp_path / "data", any_bytes=True)
    assert texts(splits)["train"] == [b"a", b"b", b"caf\xe9"]


def test_a_zip_gives_documents_whose_names_have_dots(write_files, tmp_path):
    names = ["And then...txt", "dir..x/three.txt", "one.txt"]
    path = write_files({"a.zip": make_zip({name: name.encode() for name in names})}) / "a.zip"
    splits = split_user_files([path], ALL_TRAIN, tmp_path / "data")
    assert texts(splits)["train"] == [name.encode() for name in names]


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [
        ("../evil", 0, "outside"),
        ("..\\evil", 0, "outside"),
        ("books/../../evil", 0, "outside"),
        ("/tmp/evil", 0, "outside"),
        ("evil", stat.S_IFLNK, "link"),
    ],
)
def test_an_unsafe_zip_is_refused_and_stays_inside(write_files, tmp_path, name, mode, reason):
    path = write_files({"a.zip": make_zip({name: b"/etc/passwd"}, mode)}) / "a.zip"
    shown = name.replace("\\", "/")
    with pytest.raises(DataError, match=rf"{DAMAGED}'{shown}'.*{reason}"):
        split_user_files([path], ALL_TRAIN, tmp_path / "data")
    assert set(os.listdir(tmp_path)) == {"a.zip", "data"}
    assert not Path("/tmp/evil").exists()


PACKED = ("a.zip", "a.jsonl.gz", "a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz")


@pytest.mark.parametrize("kind", PACKED)
def test_mutated_archive_gives_its_own_texts_or_is_refused(write_files, tmp_path, kind):
    members = {"a": b"to be or not\n" * 9, "b": b"to be"}
    if kind == "a.zip":
        whole = make_zip(members)
    elif kind == "a.jsonl.gz":
        whole = compress_gzip(make_lines(*(text.decode() for text in members.values())))
    else:
        whole = COMPRESSIONS[kind[5:]](make_tar(*(entry(*member) for member in members.items())))
    # In a plain tar only headers and end, each after 512 bytes of text, have checksums.
    places = [n for n in range(len(whole)) if kind != "a.tar" or n // 512 in (0, 2, 4, 5)]
    rng = random.Random(0)
    for _ in range(200):
        mutated = bytearray(whole)
        mutated[rng.choice(places)] ^= 1 << rng.randrange(8)
        path = write_files({kind: bytes(mutated[: rng.choice([-1, len(whole)])])}) / kind
        with suppress(DataError):
            splits = split_user_files([path], ALL_TRAIN, tmp_path / "data")
            assert texts(splits)["train"] == [*members.values()]


def test_a_zip_that_cannot_be_read_is_not_called_damaged(write_files, tmp_path):
    whole = make_zip({"a": b"a" * 99, "b": b"b"})
    # The flags of a member, and how it is packed, in the file's directory.
    for offset, value, reason in ((8, 1, "it is encrypted"), (10, 9, "That compression method")):
        content = bytearray(whole)
        content[content.rindex(b"PK\1\2") + offset] = value
        path = write_files({"a.zip": bytes(content)}) / "a.zip"
        with pytest.raises(
            DataError, match=rf"a\.zip: not supported \({reason}.*; unpack it first"
        ):
            split_user_files([path], ALL_TRAIN, tmp_path / "data")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.zip", "a.txt.gz", "a"])
def test_a_git_lfs_pointer_is_named_and_never_read(write_files, tmp_path, capfd, name):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    folder = write_files({name: pointer, "b.txt": b"b"}, "texts")
    for any_bytes in (False, True):
        with pytest.raises(DataError, match=rf"{name}: a Git LFS pointer \(git lfs pull\); exp"):
            split_user_files([folder / name], FRACTIONS, tmp_path / "data", any_bytes)
        splits = split_user_files([folder], ALL_TRAIN, tmp_path / "data", any_bytes)
        assert texts(splits)["train"] == [b"b"]
        assert f"skipped: {name} (a Git LFS pointer) (1)" in capfd.readouterr().err


def test_a_zip_whose_directory_hides_members_is_refused(write_files, tmp_path):
    content = bytearray(make_zip({"a": b"a", "b": b"b", "c": b"c"}))
    # The length of the comment of the first entry.
    content[content.index(b"PK\1\2") + 32] = 255
    path = write_files({"a.zip": bytes(content)}) / "a.zip"
    with pytest.raises(DataError, match=rf"{DAMAGED}1 of 3 members are listed"):
        split_user_files([path], ALL_TRAIN, tmp_path / "data")


def test_full_disk_is_a_storage_error_and_leaves_no_file(write_files, tmp_path, limit_file_size):
    path = write_files({"a.tar": make_tar(entry("a", b"to be\n" * 1000))}) / "a.tar"
    message = r"prepared/a\.tar-\w+: cannot be written \(File too large"
    with limit_file_size(10), pytest.raises(StorageError, match=message):
        split_user_files([path], FRACTIONS, tmp_path)
    assert [path.suffix for path in tmp_path.glob("prepared/*.*")] == [".lock"]


@pytest.mark.parametrize(
    ("files", "paths", "message"),
    [
        ({}, ["no.txt"], "no.txt: no such file"),
        ({"folder/empty": b""}, ["folder"], "folder: no text in it"),
        ({"a.txt.7z": b"x"}, ["a.txt.7z"], "a.txt.7z: packed; unpack it first"),
        ({"a.TAR.ZST": b"x"}, ["a.TAR.ZST"], "a.TAR.ZST: packed; unpack it first"),
        ({"a.txt.gz": b"x"}, ["a.txt.gz"], r"a.txt.gz: damaged, or not an archive \(Not a g"),
        ({"a.zip": b"x"}, ["a.zip"], r"a.zip: damaged, or not an archive \(.*is not a zip file"),
        (
            {"f/a": b"\0", "f/b": b"\xff\xfe"},
            ["f"],
            r"f: no text in it, only a \(a binary file\), b \(UTF-16\); expected a te",
        ),
        # Ids are named only where there are some: evaluate has no data.ids.
        ({"f/a.npy": b"\0"}, ["f"], r"expected a text in UTF-8, or data\.ids for ids$"),
        (
            {"a.jsonl": b'{"text": "a"}\n["b"]'},
            ["a.jsonl"],
            "a.jsonl: line 2 has no text: it is a list",
        ),
        (
            {"a.jsonl": b'{"text": "a\\ud800"}'},
            ["a.jsonl"],
            "line 1: character 2 is not UTF-8 text",
        ),
        ({"a.jsonl": b'\n{"text": "\xe9"}'}, ["a.jsonl"], "line 2: byte 10 is not UTF-8 text"),
        ({"a.jsonl": b"[" * 100_000}, ["a.jsonl"], r"line 1 has no text: it is nested too"),
        ({"a.jsonl": b"\n"}, ["a.jsonl"], r"a\.jsonl: no text in it; .* a text in UTF-8$"),
        ({"a": b"x"}, ["a", "a"], r"data\.path: invalid number of files 2; expected one, or three"),
    ],
)
def test_path_that_gives_no_splits_is_refused(write_files, tmp_path, files, paths, message):
    folder = write_files(files, "texts")
    with pytest.raises(DataError, match=message):
        split_user_files([folder / path for path in paths], FRACTIONS, tmp_path)
