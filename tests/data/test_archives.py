"""Of an archive only wanted files are taken, under our names, and no more than is due."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import resource
import stat
import tarfile
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest

from txl_lightning.data import archives as archives_module
from txl_lightning.data.archives import Member, plain_tar, take, take_all, tar_spans
from txl_lightning.errors import DataError

TEXT = b"to be or not to be\n" * 1000
SHA256 = f"sha256:{hashlib.sha256(TEXT).hexdigest()}"
WANTED = Member("books/hamlet.txt", len(TEXT), SHA256)
COMPRESSIONS = {"": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
KINDS = {
    "a symbolic link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    "a hard link": {"type": tarfile.LNKTYPE, "linkname": "books/other.txt"},
    "a device": {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5},
    "a pipe": {"type": tarfile.FIFOTYPE},
    "of an unknown kind": {"type": b"?"},
}


def entry(name, content=b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def tar_of(*entries) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def sparse_tar(name) -> bytes:
    """As GNU tar writes a file with a hole: its length is not what the archive holds."""
    info, _ = entry(name, type=tarfile.GNUTYPE_SPARSE)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 0)
    header[483:495] = b"%011o\0" % (1 << 20)
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    return bytes(header) + bytes(1024)


@pytest.fixture
def archive(tmp_path):
    """An archive whose name does not say what it is."""
    return tmp_path / "archive"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "data" / "hamlet.txt"


@pytest.fixture
def books(archive):
    """A zip of two books."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("books/other.txt", b"another")
        file.writestr(WANTED.name, TEXT)
    return archive


def nothing_is_left(target) -> bool:
    return not target.parent.exists() or os.listdir(target.parent) == []


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_member_of_a_tar_is_taken_whatever_the_archive_is_called(archive, target, compression):
    raw = tar_of(entry("books/other.txt", b"another"), entry(WANTED.name, TEXT, mode=0o4755))
    archive.write_bytes(COMPRESSIONS[compression](raw))
    assert take(archive, WANTED, target) == target
    assert target.read_bytes() == TEXT
    assert os.listdir(target.parent) == ["hamlet.txt"]
    assert not target.stat().st_mode & (stat.S_ISUID | stat.S_IXUSR)


def test_a_member_of_a_zip_is_taken_and_replaces_what_was_there(books, target):
    target.parent.mkdir()
    target.write_bytes(b"half of it")
    assert take(books, WANTED, target) == target
    assert target.read_bytes() == TEXT
    assert os.listdir(target.parent) == ["hamlet.txt"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_file_compressed_in_pieces_is_read_to_its_end(archive, target, compression):
    raw, compress = tar_of(entry(WANTED.name, TEXT)), COMPRESSIONS[compression]
    archive.write_bytes(compress(raw[:5000]) + compress(raw[5000:]))
    assert take(archive, WANTED, target).read_bytes() == TEXT


def test_a_short_member_is_checked_whole(books, target):
    member = Member("books/other.txt", 7, f"md5:{hashlib.md5(b'another').hexdigest()}")
    assert take(books, member, target).read_bytes() == b"another"


def test_a_member_of_which_nothing_is_known_is_taken(books, target):
    assert take(books, Member(WANTED.name, None, None), target).read_bytes() == TEXT


@pytest.mark.parametrize(
    ("member", "difference"),
    [
        (Member(WANTED.name, len(TEXT) + 1, None), "19000 bytes, not 19001 bytes"),
        (Member(WANTED.name, None, "sha256:00"), "sha256 [0-9a-f]+, not sha256 00"),
    ],
)
def test_another_member_than_expected_is_refused(books, target, member, difference):
    with pytest.raises(DataError, match=rf"'books/hamlet\.txt' is another file \({difference}\)"):
        take(books, member, target)
    assert nothing_is_left(target)


def test_a_refusal_keeps_what_was_there(books, target):
    target.parent.mkdir()
    target.write_bytes(b"good")
    with pytest.raises(DataError):
        take(books, Member(WANTED.name, None, "md5:00"), target)
    assert target.read_bytes() == b"good"


def test_a_missing_member_is_named(books, target):
    with pytest.raises(DataError, match=r"^\S+archive: has no member 'hamlet\.txt'; replace"):
        take(books, Member("hamlet.txt", None, None), target)
    assert nothing_is_left(target)


@pytest.mark.parametrize("name", ["../evil", "books/../../evil", "/etc/evil"])
def test_a_name_that_leads_out_is_refused(archive, target, name):
    archive.write_bytes(tar_of(entry(name, TEXT)))
    with pytest.raises(DataError, match=rf"the member '{name}' leads out of it"):
        take(archive, Member(name, None, None), target)
    with pytest.raises(DataError, match=rf"the member '{name}' leads out of it"):
        tar_spans(archive)
    assert nothing_is_left(target)


def test_evil_that_is_not_wanted_is_passed_over(archive, target, tmp_path):
    links = [entry(f"link{n}", **fields) for n, fields in enumerate(KINDS.values())]
    archive.write_bytes(tar_of(entry("../evil", b"evil"), *links, entry(WANTED.name, TEXT)))
    assert take(archive, WANTED, target).read_bytes() == TEXT
    assert {path.name for path in tmp_path.rglob("*")} == {"archive", "data", "hamlet.txt"}


@pytest.mark.parametrize("kind", [*KINDS, "a directory"])
def test_what_is_no_plain_file_is_not_taken(archive, target, kind):
    fields = KINDS.get(kind, {"type": tarfile.DIRTYPE})
    archive.write_bytes(tar_of(entry("books/other.txt", TEXT), entry(WANTED.name, **fields)))
    with pytest.raises(
        DataError, match=rf"^\S+archive: the member 'books/hamlet\.txt' is {kind}; only plain"
    ):
        take(archive, WANTED, target)
    assert nothing_is_left(target)


def test_a_sparse_file_is_not_taken(archive, target):
    archive.write_bytes(sparse_tar(WANTED.name))
    with pytest.raises(DataError, match="is a sparse file; only plain files are taken"):
        take(archive, WANTED, target)
    with pytest.raises(DataError, match="is a sparse file; only plain files are taken"):
        tar_spans(archive)


def test_a_file_of_a_negative_size_does_not_lead_in_circles(archive, target):
    info, _ = entry(WANTED.name)
    info.size = -512
    archive.write_bytes(tar_of(entry("a", TEXT))[:19_968] + info.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(DataError):
        tar_spans(archive)


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFDIR])
def test_a_zip_has_links_and_devices_too(archive, target, mode):
    info = zipfile.ZipInfo(WANTED.name)
    info.external_attr = (mode | 0o777) << 16
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(info, b"/etc/passwd")
    with pytest.raises(DataError, match="is a link, a directory or a device; only plain"):
        take(archive, Member(WANTED.name, None, None), target)
    assert nothing_is_left(target)


def test_an_encrypted_member_is_refused(books, target):
    raw = bytearray(books.read_bytes())
    raw[raw.rindex(b"PK\x01\x02") + 8] |= 1
    books.write_bytes(raw)
    with pytest.raises(DataError, match=r"'books/hamlet\.txt' is encrypted; only plain"):
        take(books, WANTED, target)


@contextmanager
def disk_of_ten_bytes():
    """No file may grow further; not even what pytest writes to, so that it must end soon."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_zip_of_zeros_is_stopped_at_the_size_that_is_due(archive, target):
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(100 << 20))
    tracemalloc.start()
    said = "'zeros' unpacks to more than 10 bytes; replace"
    with disk_of_ten_bytes(), pytest.raises(DataError, match=said):
        take(archive, Member("zeros", 10, None), target)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 << 20
    assert nothing_is_left(target)


def test_a_full_disk_is_one_line_and_nothing_is_left(books, target):
    message = r"archive: cannot be unpacked into .*data \(File too large\); make room or set"
    with disk_of_ten_bytes(), pytest.raises(DataError, match=message):
        take(books, WANTED, target)
    assert nothing_is_left(target)


def test_a_folder_that_cannot_be_is_named(books, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"archive: cannot be unpacked into .*file \("):
        take(books, WANTED, tmp_path / "file" / "hamlet.txt")


def test_zeros_of_unknown_size_are_stopped_at_what_the_archive_can_hold(
    archive, target, monkeypatch
):
    monkeypatch.setattr(archives_module, "HARMLESS", 1 << 20)
    archive.write_bytes(gzip.compress(tar_of(entry("zeros", bytes(4 << 20)))))
    assert archive.stat().st_size * archives_module.GROWTH < 1 << 20
    with pytest.raises(DataError, match="'zeros' unpacks to more than 1,048,576 bytes"):
        take(archive, Member("zeros", None, None), target)
    with pytest.raises(DataError, match="'zeros' unpacks to more than 1,048,576 bytes"):
        take_all(archive, {"zeros": target})
    with pytest.raises(DataError, match="it unpacks to more than 1,048,576 bytes"):
        plain_tar(archive, target.parent)
    assert nothing_is_left(target)


def test_zeros_in_a_zip_are_stopped_there_too(archive, target, monkeypatch):
    monkeypatch.setattr(archives_module, "HARMLESS", 1 << 20)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(4 << 20))
    with pytest.raises(DataError, match="'zeros' unpacks to more than 1,048,576 bytes"):
        take(archive, Member("zeros", None, None), target)
    assert nothing_is_left(target)


@pytest.mark.parametrize(("harmless", "growth"), [(4 << 20, 200), (1, 2000)])
def test_what_is_harmless_or_in_proportion_is_taken(archive, target, monkeypatch, harmless, growth):
    monkeypatch.setattr(archives_module, "HARMLESS", harmless)
    monkeypatch.setattr(archives_module, "GROWTH", growth)
    archive.write_bytes(gzip.compress(tar_of(entry("zeros", bytes(4 << 20)))))
    assert take(archive, Member("zeros", None, None), target).stat().st_size == 4 << 20


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("length", [0, 300, 5000])
def test_half_an_archive_is_refused(archive, target, compression, length):
    content = np.random.default_rng(0).bytes(20_000)
    raw = COMPRESSIONS[compression](tar_of(entry(WANTED.name, content)))
    archive.write_bytes(raw[:length])
    member = Member(WANTED.name, len(content), None)
    with pytest.raises(DataError, match="archive: cannot be read as an archive"):
        take(archive, member, target)
    assert nothing_is_left(target)


def test_half_a_zip_or_a_damaged_one_is_refused(books, target):
    raw = books.read_bytes()
    books.write_bytes(raw[:-10])
    with pytest.raises(DataError, match=r"cannot be read as an archive \(.*\); replace it"):
        take(books, WANTED, target)
    at = raw.index(WANTED.name.encode()) + len(WANTED.name) + 20
    books.write_bytes(raw[:at] + b"?" + raw[at + 1 :])
    with pytest.raises(DataError, match="cannot be read as an archive"):
        take(books, WANTED, target)
    assert nothing_is_left(target)


def test_a_name_that_is_no_text_is_one_line(books, target):
    raw = bytearray(books.read_bytes())
    entry_at = raw.rindex(b"PK\x01\x02")
    raw[entry_at + 9] |= 0x08
    raw[entry_at + 46] = 0xFF
    books.write_bytes(raw)
    with pytest.raises(DataError, match=r"cannot be read as an archive \('utf-8' codec"):
        take(books, WANTED, target)


@pytest.mark.parametrize("size", [1 << 62, 1 << 80])
def test_a_size_that_cannot_be_is_not_read_through(archive, target, size):
    info, _ = entry("other")
    info.size = size
    archive.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(DataError, match="the member 'other' unpacks to more than 67,108,864 bytes"):
        take(archive, WANTED, target)
    with pytest.raises(DataError, match="cannot be read as an archive"):
        tar_spans(archive)


@pytest.mark.parametrize("size", [1 << 50, 1 << 70])
def test_a_name_longer_than_memory_is_one_line(archive, size):
    info, _ = entry("other", type=tarfile.XHDTYPE)
    info.size = size
    archive.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(DataError, match="cannot be read as an archive"):
        tar_spans(archive)


def test_what_is_no_archive_is_refused(archive, target):
    archive.write_bytes(b"To be, or not to be" * 100)
    with pytest.raises(DataError, match="cannot be read as an archive"):
        take(archive, WANTED, target)
    with pytest.raises(DataError, match=r"archive: not a tar \(.*\); it must be a tar, plain or"):
        plain_tar(archive, target.parent)
    with pytest.raises(DataError, match="cannot be read as an archive"):
        tar_spans(archive)


def test_an_archive_that_is_not_there_is_named(archive, target):
    with pytest.raises(DataError, match=r"archive: cannot be read as an archive \(No such"):
        take(archive, WANTED, target)
    with pytest.raises(DataError, match=r"archive: cannot be read as an archive \(No such"):
        plain_tar(archive, target.parent)


def test_several_members_are_taken_in_one_pass(archive, tmp_path, monkeypatch):
    texts = {f"books/{n}": b"%d\n" % n * n for n in range(20)}
    raw = tar_of(*(entry(name, text) for name, text in texts.items()), entry("more", TEXT))
    archive.write_bytes(gzip.compress(raw))
    opened = []
    unpack = archives_module.COMPRESSIONS[b"\x1f\x8b"]
    monkeypatch.setitem(
        archives_module.COMPRESSIONS, b"\x1f\x8b", lambda path: opened.append(path) or unpack(path)
    )
    wanted = {f"books/{n}": tmp_path / "data" / f"{n}.txt" for n in (7, 3, 19)}
    take_all(archive, wanted)
    assert {name: path.read_bytes() for name, path in wanted.items()} == {
        name: texts[name] for name in wanted
    }
    assert len(os.listdir(tmp_path / "data")) == 3
    assert len(opened) == 1


def test_of_several_members_with_one_name_the_first_is_taken(archive, tmp_path):
    archive.write_bytes(tar_of(entry("a", b"first"), entry("a", b"second"), entry("b", b"b")))
    take_all(archive, {name: tmp_path / name for name in "ab"})
    assert (tmp_path / "a").read_bytes() == b"first"


def test_a_missing_one_of_several_is_named(archive, tmp_path):
    archive.write_bytes(tar_of(entry("a", b"a"), entry("c", b"c")))
    wanted = {name: tmp_path / "data" / name for name in "abc"}
    with pytest.raises(DataError, match="archive: has no member 'b'"):
        take_all(archive, wanted)


def test_a_plain_tar_is_itself(archive, tmp_path):
    archive.write_bytes(tar_of(entry("a", b"a")))
    assert plain_tar(archive, tmp_path / "data") == archive
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_unpacked_once_and_anew_when_it_changes(archive, tmp_path, compression):
    compress = COMPRESSIONS[compression]
    archive.write_bytes(compress(tar_of(entry("a", b"a"))))
    tar = plain_tar(archive, tmp_path / "data")
    assert tar.read_bytes() == tar_of(entry("a", b"a"))
    stamp = tar.stat().st_mtime_ns
    assert plain_tar(archive, tmp_path / "data") == tar
    assert tar.stat().st_mtime_ns == stamp
    os.utime(archive, ns=(0, 0))
    assert plain_tar(archive, tmp_path / "data") != tar


def test_the_spans_of_a_tar_are_its_files_by_name(archive, tmp_path):
    long = "deep/" * 40 + "é.txt"
    texts = {"b.txt": b"bb", "./a.txt": b"a\n", long: TEXT}
    hidden = [entry("._b.txt", b"x"), entry("a/.git/b", b"x"), entry("empty"), entry("b.txt", b"x")]
    folder = entry("deep", type=tarfile.DIRTYPE)
    raw = tar_of(folder, *hidden, *(entry(name, text) for name, text in texts.items()))
    archive.write_bytes(gzip.compress(raw))
    tar = plain_tar(archive, tmp_path / "data")
    spans = tar_spans(tar)
    assert [name for name, _, _ in spans] == ["./a.txt", "b.txt", long]
    whole = tar.read_bytes()
    assert {name: whole[start:stop] for name, start, stop in spans} == texts


@pytest.mark.parametrize("kind", KINDS)
def test_a_tar_with_a_link_or_a_device_is_refused(archive, kind):
    archive.write_bytes(tar_of(entry("a", b"a"), entry(".b", **KINDS[kind])))
    with pytest.raises(DataError, match=rf"archive: the member '\.b' is {kind}; only plain files"):
        tar_spans(archive)


def test_a_tar_that_is_damaged_or_cut_in_the_middle_is_not_read_in_part(archive):
    raw = bytearray(tar_of(entry("a", TEXT), entry("b", TEXT)))
    archive.write_bytes(raw[:10_000])
    with pytest.raises(DataError, match=r"cannot be read as an archive \(unexpected end of data"):
        tar_spans(archive)
    raw[raw.index(b"b\0")] = 0
    archive.write_bytes(raw)
    with pytest.raises(DataError, match="no header at byte 19,968"):
        tar_spans(archive)
