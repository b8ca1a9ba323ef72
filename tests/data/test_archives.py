"""Members of a corpus's archive are copied out; a user's tar may not harm what is around it."""

import bz2
import gzip
import lzma
import os
import resource
import tarfile
import zipfile

import pytest

from txl_lightning.data import archives
from txl_lightning.data.archives import extract_members, unpack_tar
from txl_lightning.errors import DataError, StorageError

TEXT = b"to be or not to be\n" * 1000
COMPRESSIONS = {"": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
KINDS = {
    "symbolic link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    "hard link": {"type": tarfile.LNKTYPE, "linkname": "books/other.txt"},
    "device": {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5},
    "pipe": {"type": tarfile.FIFOTYPE},
    "unknown kind": {"type": b"?"},
    "negative size": {"size": -512},
}


def entry(name, content=b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def make_tar(*entries) -> bytes:
    headers = [info.tobuf(tarfile.GNU_FORMAT) + body for info, body in entries]
    return b"".join(part + bytes(-len(part) % 512) for part in headers) + bytes(1024)


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
def test_named_members_become_files_and_others_stay(archive, tmp_path, kind):
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
    with pytest.raises(DataError, match=r"archive: damaged or no archive \(.*no.*absent"):
        extract_members(archive, {"absent": tmp_path / "absent"})


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_users_tar_is_unpacked_as_plain_files(archive, folder, compression):
    texts = {"a.txt": b"a\n", "deep/" * 18 + "é.txt": TEXT, "empty": b""}
    entries = [entry(name, text, mode=0o4755) for name, text in texts.items()]
    raw = make_tar(entry("deep", type=tarfile.DIRTYPE), entry("a.txt", b"earlier"), *entries)
    archive.write_bytes(COMPRESSIONS[compression](raw))
    unpack_tar(archive, folder)
    assert files_in(folder) == texts
    assert not (folder / "a.txt").stat().st_mode & 0o4000


@pytest.mark.parametrize("name", ["../evil", "books/../../evil"])
def test_a_name_that_leads_out_of_the_folder_is_refused(archive, folder, tmp_path, name):
    archive.write_bytes(make_tar(entry(name, TEXT)))
    with pytest.raises(DataError, match=r"archive: damaged or no archive \(.*outside"):
        unpack_tar(archive, folder)
    assert set(os.listdir(tmp_path)) == {"archive", "unpacked"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_no_plain_file_is_refused(archive, folder, kind):
    archive.write_bytes(make_tar(entry("a", b"a"), entry("b", **KINDS[kind])))
    with pytest.raises(DataError, match="archive: member 'b' is no plain file; leave it out"):
        unpack_tar(archive, folder)


def test_an_archive_that_explodes_is_stopped_before_it_is_written(archive, folder, monkeypatch):
    monkeypatch.setattr(archives, "HARMLESS", 1 << 20)
    archive.write_bytes(gzip.compress(make_tar(entry("a", b"a"), entry("zeros", bytes(4 << 20)))))
    with pytest.raises(DataError, match="archive: unpacks to more than 1,048,576 bytes; replace"):
        unpack_tar(archive, folder)
    assert set(files_in(folder)) == {"a"}
    monkeypatch.setattr(archives, "GROWTH", 2000)
    unpack_tar(archive, folder)
    assert len(files_in(folder)["zeros"]) == 4 << 20


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_tar_that_is_cut_is_refused(archive, folder, compression):
    raw = COMPRESSIONS[compression](make_tar(entry("a", os.urandom(20_000))))
    for length in (0, 300, 5000):
        archive.write_bytes(raw[:length])
        with pytest.raises(DataError, match="archive: damaged or no archive"):
            unpack_tar(archive, folder)


@pytest.mark.parametrize("fields", [{"size": 1 << 70}, {"size": 1 << 70, "type": tarfile.XHDTYPE}])
def test_a_size_beyond_memory_is_refused(archive, folder, fields):
    archive.write_bytes(make_tar(entry("a", **fields)))
    with pytest.raises(DataError, match=r"archive: (unpacks to more|damaged or no archive)"):
        unpack_tar(archive, folder)


def test_a_tar_with_a_damaged_header_in_the_middle_is_refused(archive, folder):
    raw = bytearray(make_tar(entry("a", TEXT), entry("b", TEXT)))
    raw[raw.index(b"b\0")] = 0
    archive.write_bytes(raw)
    with pytest.raises(DataError, match="no header at byte 19,968"):
        unpack_tar(archive, folder)


def test_a_full_disk_is_a_storage_error_and_leaves_no_file(archive, tmp_path):
    archive.write_bytes(make_tar(entry("a", TEXT)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(StorageError, match=r"data/a\.txt: cannot be written \(File too large"):
            extract_members(archive, {"a": tmp_path / "data" / "a.txt"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_in(tmp_path / "data") == {}
