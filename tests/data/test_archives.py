"""Members of a corpus's archive are copied out; a user's tar may not harm what is around it."""

import bz2
import gzip
import lzma
import os
import tarfile
import zipfile

import pytest

from txl_lightning.data import archives
from txl_lightning.data.archives import extract_members, unpack_tar
from txl_lightning.errors import DataError, StorageError

TEXT = b"to be or not to be\n" * 1000
COMPRESSIONS = {"": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def entry(name, content=b"", **fields) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    raw = info.tobuf(tarfile.GNU_FORMAT) + content
    return raw + bytes(-len(raw) % 512)


def make_tar(*entries: bytes) -> bytes:
    return b"".join(entries) + bytes(1024)


NO_PLAIN_FILE = "member 'b' is no plain file; leave it out"
DAMAGED = r"damaged or no archive \("
REFUSED_MEMBERS = {
    "parent folder": (entry("../evil", TEXT), rf"{DAMAGED}.*outside"),
    "parent folder inside": (entry("books/../../evil", TEXT), rf"{DAMAGED}.*outside"),
    "symbolic link": (entry("b", type=tarfile.SYMTYPE, linkname="/etc/passwd"), NO_PLAIN_FILE),
    "hard link": (entry("b", type=tarfile.LNKTYPE, linkname="a"), NO_PLAIN_FILE),
    "device": (entry("b", type=tarfile.CHRTYPE, devmajor=1, devminor=5), NO_PLAIN_FILE),
    "pipe": (entry("b", type=tarfile.FIFOTYPE), NO_PLAIN_FILE),
    "unknown kind": (entry("b", type=b"?"), NO_PLAIN_FILE),
    "negative size": (entry("b", size=-512), NO_PLAIN_FILE),
    "size beyond memory": (entry("b", size=1 << 70), "unpacks to more than 67,108,864 bytes"),
    "header beyond memory": (entry("b", size=1 << 70, type=tarfile.XHDTYPE), DAMAGED),
    "damaged header": (b"?" + entry("b", TEXT)[1:], rf"{DAMAGED}no header at byte 1,024"),
}


@pytest.fixture
def archive(tmp_path):
    """An archive whose name does not say what it is."""
    return tmp_path / "archive"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "unpacked").mkdir()
    return tmp_path / "unpacked"


def files_in(folder) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if not path.is_dir())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("kind", ["zip", *COMPRESSIONS])
def test_extract_members_writes_the_named_members_only(archive, tmp_path, kind):
    texts = {f"books/{n}": b"%d\n" % n * n for n in range(20)} | {"../evil": b"evil"}
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for name, text in texts.items():
                file.writestr(name, text)
    else:
        raw = make_tar(*(entry(name, text) for name, text in texts.items()))
        archive.write_bytes(COMPRESSIONS[kind](raw))
    extract_members(archive, {f"books/{n}": tmp_path / "data" / f"{n}.txt" for n in (7, 3, 19)})
    assert files_in(tmp_path / "data") == {f"{n}.txt": texts[f"books/{n}"] for n in (3, 7, 19)}
    with pytest.raises(DataError, match=rf"archive: {DAMAGED}.*no.*absent"):
        extract_members(archive, {"absent": tmp_path / "absent"})


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tar_is_unpacked_as_plain_files_unless_it_is_cut(archive, folder, compression):
    texts = {"a.txt": b"a\n", "deep/" * 18 + "é.txt": os.urandom(20_000), "empty": b""}
    entries = [entry(name, text, mode=0o4755) for name, text in texts.items()]
    raw = make_tar(entry("deep", type=tarfile.DIRTYPE), entry("a.txt", b"earlier"), *entries)
    raw = COMPRESSIONS[compression](raw)
    for length in (0, 300, 5000):
        archive.write_bytes(raw[:length])
        with pytest.raises(DataError, match=f"archive: {DAMAGED}"):
            unpack_tar(archive, folder)
    archive.write_bytes(raw)
    unpack_tar(archive, folder)
    assert files_in(folder) == texts
    assert not (folder / "a.txt").stat().st_mode & 0o4000


@pytest.mark.parametrize("kind", REFUSED_MEMBERS)
def test_tar_member_that_could_do_harm_is_refused(archive, folder, tmp_path, kind):
    member, message = REFUSED_MEMBERS[kind]
    archive.write_bytes(make_tar(entry("a", b"a"), member))
    with pytest.raises(DataError, match=f"archive: {message}"):
        unpack_tar(archive, folder)
    assert set(os.listdir(tmp_path)) == {"archive", "unpacked"}


def test_tar_that_explodes_is_stopped_before_it_is_written(archive, folder, monkeypatch):
    monkeypatch.setattr(archives, "HARMLESS", 1 << 20)
    archive.write_bytes(gzip.compress(make_tar(entry("a", b"a"), entry("zeros", bytes(4 << 20)))))
    with pytest.raises(DataError, match="archive: unpacks to more than 1,048,576 bytes; replace"):
        unpack_tar(archive, folder)
    assert set(files_in(folder)) == {"a"}
    monkeypatch.setattr(archives, "GROWTH", 2000)
    unpack_tar(archive, folder)
    assert len(files_in(folder)["zeros"]) == 4 << 20


def test_full_disk_is_a_storage_error_and_leaves_no_file(archive, tmp_path, limit_file_size):
    archive.write_bytes(make_tar(entry("a", TEXT)))
    message = r"data/a\.txt: cannot be written \(File too large"
    with limit_file_size(10), pytest.raises(StorageError, match=message):
        extract_members(archive, {"a": tmp_path / "data" / "a.txt"})
    assert files_in(tmp_path / "data") == {}
