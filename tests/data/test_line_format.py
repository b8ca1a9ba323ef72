"""JSON lines with a text under any key, an identifier, and lines that are left out."""

import bz2
import gzip
import json
import lzma
import re
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txl_lightning import CorpusDataModule
from txl_lightning.data import json_lines, text_files
from txl_lightning.data.archives import ZSTANDARD
from txl_lightning.data.encoding import join_neighbors, prepare_folder
from txl_lightning.data.id_files import IdOptions, split_id_files
from txl_lightning.data.json_lines import LineFormat
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.store import Store, open_store
from txl_lightning.data.text_files import FileSlice, split_user_files
from txl_lightning.errors import DataError

ALL_TRAIN = (1.0, 0.0, 0.0)
RECORDS = [{"id": n, "body": f"text {n}", "a": {"b": f"inner {n}"}} for n in range(20)]
BAD = [b"null", b'{"a": 1}', b'{"text": 3}', b"x", b'{"text": "\\ud800"}']


def join_records(records) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in records)


def read(path, data_dir, any_bytes=False, **settings) -> list[bytes]:
    how = LineFormat(**settings)
    splits = split_user_files([path], ALL_TRAIN, data_dir, any_bytes, how)
    # A single document is cut, in two places at its end.
    return [text for part in chain(*splits.values()) if (text := b"".join(part.chunks()))]


def read_slice(part: FileSlice) -> bytes:
    return b"".join(part.chunks())


def pack_zstandard(content: bytes) -> bytes:
    """Return a frame of one raw block, of less than 256 bytes (RFC 8878)."""
    size = len(content)
    block = (size << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\x20" + bytes([size]) + block + content


def has_module(name: str) -> bool:
    # Without its parent, there is an error.
    with suppress(ModuleNotFoundError):
        return find_spec(name) is not None
    return False


def read_identifiers(store: Store, split: str = "train") -> list:
    return [json.loads(line) for line in store.identifiers(split).read_text().splitlines()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.txt", "a", "a.json.gz"])
@pytest.mark.parametrize("any_bytes", [False, True])
def test_a_key_makes_a_single_file_json_lines_and_names_the_text(
    write_files, tmp_path, name, any_bytes
):
    content = b"\n" + join_records(RECORDS)
    content = gzip.compress(content) if name.endswith(".gz") else content
    path = write_files({f"x/{name}": content}) / "x" / name
    data = tmp_path / "data"
    expected = [each["body"].encode() for each in RECORDS]
    assert read(path, data, any_bytes, text_key="body") == expected
    inner = [each["a"]["b"].encode() for each in RECORDS]
    assert read(path, data, any_bytes, text_key="a.b") == inner
    # In a folder, other files may be plain text; lines are known by the key.
    if name != "a.txt":
        write_files({"x/b.txt": b"plain"})
        assert read(path.parent, data, any_bytes, text_key="body") == [*expected, b"plain"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_plain_text_with_a_key_is_refused(write_files, tmp_path, name):
    content = gzip.compress(b"plain") if name.endswith(".gz") else b"plain"
    path = write_files({name: content}) / name
    with pytest.raises(DataError, match=rf"/{re.escape(name)}: line 1 has no text: it is not JSON"):
        read(path, tmp_path / "data", text_key="text")


@pytest.mark.parametrize("any_bytes", [False, True])
@pytest.mark.parametrize("key", ["text_key", "id_key"])
def test_what_is_no_text_is_refused_with_a_key_and_never_read_as_bytes(
    write_files, tmp_path, any_bytes, key
):
    # Such as packed lines on the standard input, whose name does not say that they are packed.
    path = write_files({"stdin": gzip.compress(join_records(RECORDS))}) / "stdin"
    what = r"compressed by gzip \(gzip -dc\)"
    with pytest.raises(DataError, match=rf"stdin: {what}; expected text in UTF-8$"):
        read(path, tmp_path / "data", any_bytes, **{key: "body"})


def test_a_key_with_a_dot_is_a_key_before_it_is_a_path(write_files, tmp_path):
    path = write_files({"a.jsonl": b'{"a": {"b": "inner"}, "a.b": "outer"}'}) / "a.jsonl"
    assert read(path, tmp_path / "data", text_key="a.b") == [b"outer"]


def test_another_key_is_another_text_and_the_same_text_has_one_fingerprint(write_files, tmp_path):
    folder = write_files({"a.jsonl": join_records(RECORDS)})
    same = [{"text": each["body"]} for each in RECORDS]
    write_files({"b.jsonl": b"null\n" + join_records(same)})
    config = DataConfig(path=folder / "a.jsonl", data_dir=tmp_path / "data", text_key="body")
    texts = [config, replace(config, text_key="a.b"), replace(config, id_key="id")]
    other = replace(config, path=str(folder / "b.jsonl"), text_key=None, skip_bad_lines=True)
    body, inner, named, skipped = [each.open_text() for each in (*texts, other)]
    assert body.fingerprint == named.fingerprint == skipped.fingerprint != inner.fingerprint
    assert skipped.manifest["skipped_lines"] == 1
    assert "skipped_lines" not in body.manifest


@pytest.mark.parametrize(
    ("line", "settings", "problem"),
    [
        (b'{"text": "a"}', {"text_key": "body"}, "has no text: there is no key body; its keys: t"),
        (b'{"body": 1}', {"text_key": "body"}, "has no text: its body is a number"),
        (b'{"a": 1}', {"text_key": "a.b"}, "has no text: there is no key a.b; its keys: a"),
        (b'{"text": "a"}', {"id_key": "n"}, "has no identifier: there is no key n; its keys: text"),
        (b'{"text": "a", "n": null}', {"id_key": "n"}, "has no identifier: its n is null, not a"),
        (b'{"text": "a", "n": true}', {"id_key": "n"}, "has no identifier: its n is true or fals"),
        (b'{"text": "a", "n": [1]}', {"id_key": "n"}, "has no identifier: its n is a list, not a"),
        (b'{"text": "a", "n": NaN}', {"id_key": "n"}, "has no identifier: its n is nan"),
        (b'{"text": "a", "n": "\\udfff"}', {"id_key": "n"}, ": character 1 is not UTF-8 text"),
        (b'["a"]', {}, r"has no text: it is a list \(jq -c '\.\[\]' makes JSON lines of an array"),
        (b"plain", {"text_key": "text"}, r"has no text: it is not JSON \(Expecting value at char"),
    ],
)
def test_a_line_without_a_text_or_identifier_is_refused(
    write_files, tmp_path, line, settings, problem
):
    path = write_files({"a.jsonl": line}) / "a.jsonl"
    with pytest.raises(DataError, match=rf"a\.jsonl: line 1:? ?{problem}"):
        read(path, tmp_path / "data", **settings)


@given(keys=st.lists(st.text("ab.", min_size=1, max_size=5), min_size=1, max_size=2))
@example(keys=["a", "a.b"])
@example(keys=["a.b", "a"])
def test_a_line_that_is_expected_has_a_text_and_an_identifier_under_their_keys(keys):
    how = LineFormat(text_key=keys[0], id_key=keys[1] if keys[1:] else None)
    text, identifier = json_lines.parse_line("line 1", how.example.encode(), how)
    assert (text, identifier) == (b"...", "..." if keys[1:] else None)


def test_the_key_of_a_key_is_shown_within_it():
    how = LineFormat(text_key="meta.body", id_key="meta.id")
    assert how.example == '{"meta": {"id": "...", "body": "..."}}'


@pytest.mark.parametrize("key", ["text_key", "skip_bad_lines"])
def test_a_setting_of_json_lines_without_any_has_no_effect_and_is_named(
    write_files, tmp_path, capfd, key
):
    folder = write_files({"a.txt": b"a", "b.txt": b"b"}, "x")
    settings = {"text_key": "body"} if key == "text_key" else {"skip_bad_lines": True}
    config = DataConfig(path=folder, data_dir=tmp_path / "data", **settings)
    config.open_text()
    assert capfd.readouterr().err == f"warning: {key}: no effect, as no file is JSON lines\n"
    write_files({"c.jsonl": join_records([{"body": "c", "text": "d"}])}, "x")
    config.open_text()
    assert "no effect" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "x", "a.txt"])
def test_the_size_of_a_text_is_known_without_its_documents(write_files, tmp_path, name):
    lines = join_records([{"text": f"text {n}"} for n in range(30)] + [{"text": ""}])
    packed = gzip.compress(lines)
    folder = write_files({"a.jsonl": lines, "a.jsonl.gz": packed, "a.txt": b"plain"})
    write_files({"b.jsonl": lines, "c.jsonl.gz": packed, "d.txt": b"plain"}, "x")
    config = DataConfig(path=folder / name, data_dir=tmp_path / "data")
    how = tmp_path / "data", False, LineFormat()
    joined = text_files.read_texts(folder / name, *how, are_joined=True).values()
    assert [len(each) for each in joined] == [1] * len(joined)
    sizes = [part.n_byte for part in config.source.find_encoding().slices]
    assert config.source.measure_own().n_byte == sum(sizes)
    assert len(sizes) == {"x": 61, "a.txt": 3}.get(name, 30)


def test_bad_lines_are_counted_and_the_first_are_named(write_files, tmp_path, monkeypatch):
    good = [b'{"text": "%d"}' % n for n in range(5)]
    lines = [each for pair in zip(good, BAD, strict=True) for each in pair]
    path = write_files({"a.jsonl": b"\n".join(lines)}) / "a.jsonl"
    named = r"a\.jsonl: line 2 has no text: it is null; line 4 has .*; line 6 has .* a number"
    fix = r'expected {"text": "..."} in each line; skip_bad_lines true leaves such lines out$'
    with pytest.raises(DataError, match=rf"{named}; 5 bad lines; {fix}"):
        read(path, tmp_path / "data")
    # The rest of a large file is not read.
    monkeypatch.setattr(json_lines, "MOST_BAD", 3)
    monkeypatch.setattr(json_lines, "LONGEST_LINE", 40)
    path.write_bytes(b"\n".join([*lines, b'"%s"' % (b"a" * 40)]))
    with pytest.raises(DataError, match=f"{named}; more than 3 bad lines; {fix}"):
        read(path, tmp_path / "data")


def test_bad_lines_are_left_out_on_request_with_a_notice_and_in_the_manifest(
    write_files, tmp_path, capfd
):
    lines = [b'{"text": "%d"}' % n for n in range(9)]
    path = write_files({"a.jsonl": b"\n".join([*BAD, *lines, b"[]", b'{"text": "\xe9"}'])})
    path = path / "a.jsonl"
    config = DataConfig(path=path, data_dir=tmp_path / "data", skip_bad_lines=True)
    for _ in range(2):
        assert config.source.measure_own().n_byte == 9
        store = config.open_text()
        notice = capfd.readouterr().err
        assert notice.startswith(f"warning: {path}: left out: line 1 has no text: it is null; lin")
        assert notice.endswith("; 7 bad lines\n")
        assert notice.count("\n") == 1
        # As in another process, which finds the lines unpacked.
        json_lines.warn_once.cache_clear()
    assert store.manifest["skipped_lines"] == 7
    assert b"".join(store.ids(split).tobytes() for split in ("train", "val", "test")) == (
        b"012345678"
    )
    write_files({"a.jsonl": b"\n".join(BAD)})
    with pytest.raises(DataError, match=r"a\.jsonl: no text in it"):
        config.open_text()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"text": "a"}\r\n\r\n{"text": "b"}\r\n', [b"a", b"b"]),
        (b'\xef\xbb\xbf\n\xef\xbb\xbf{"text": "a"}\n\xef\xbb\xbf{"text": "b"}', [b"a", b"b"]),
        (b'{"text": "a", "score": NaN}\n{"text": "b", "n": Infinity}', [b"a", b"b"]),
        (b'{"text": "a", "text": "b"}', [b"b"]),
        (b'{"text": ""}\n{"text": " "}', [b" "]),
        (b'{"text": "\\ud83d\\ude42\\u0000"}', ["🙂\0".encode()]),
        (b'{"text": "%s"}' % (b"a" * 3_000_000), [b"a" * 3_000_000]),
    ],
)
def test_what_other_programs_write_is_read(write_files, tmp_path, content, expected):
    path = write_files({"a.jsonl": content}) / "a.jsonl"
    assert read(path, tmp_path / "data") == expected


@pytest.mark.parametrize(
    ("ending", "pack"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_packed_json_lines_are_those_in_them(write_files, tmp_path, ending, pack):
    records = join_records({"text": f"{n}"} for n in range(4))
    files = {f"{n}.{kind}{ending}": pack(records) for n, kind in enumerate(("jsonl", "ndjson"))}
    folder = write_files(files, "x")
    for name in files:
        assert read(folder / name, tmp_path / "data") == [b"0", b"1", b"2", b"3"]
    assert len(read(folder, tmp_path / "data")) == 8


def test_zstandard_is_unpacked_or_refused_with_what_it_needs(write_files, tmp_path):
    content = pack_zstandard(join_records([{"text": "one"}, {"text": "two"}]))
    path = write_files({"a.jsonl.zst": content}) / "a.jsonl.zst"
    if any(map(has_module, ZSTANDARD)):
        assert read(path, tmp_path / "data") == [b"one", b"two"]
        path.write_bytes(content[:-4])
        message = "damaged, or not an archive"
    else:
        message = r"not supported \(it needs Python 3.14, or pip install backports\.zstd\)"
    with pytest.raises(DataError, match=rf"a\.jsonl\.zst: {message}"):
        read(path, tmp_path / "data")


@pytest.mark.parametrize("vocab", ["bytes", "words", "bpe"])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_document_of_a_store_has_its_identifier(write_files, tmp_path, vocab, workers):
    # Of white space, words are none: such a document has no tokens, and is left out.
    texts = ["one two", " ", "three", " \t", *(f"text {n} " * 9 for n in range(40)), "  ", "end"]
    records = [{"key": n if n % 2 else f"n{n}", "text": text} for n, text in enumerate(texts)]
    path = write_files({"a.jsonl": join_records(records)}) / "a.jsonl"
    config = DataConfig(path=path, id_key="key", vocab=vocab, data_dir=tmp_path / "data")
    config = replace(config, words=replace(config.words, line_end="none"), split=ALL_TRAIN)
    store = prepare_folder(config.source.find_encoding(), tmp_path / "s", tmp_path / "d", workers)
    text = store.text("train")
    ends = [*text.starts[1:], len(text)]
    found = [store.vocab.decode(text.ids[a:b]) for a, b in zip(text.starts, ends, strict=True)]
    kept = [each for each in records if vocab != "words" or each["text"].strip()]
    assert read_identifiers(store) == [each["key"] for each in kept]
    assert [each.split() for each in found] == [each["text"].split() for each in kept]


def test_other_identifiers_of_the_same_texts_are_in_a_store_of_the_same_fingerprint(
    write_files, tmp_path
):
    config = DataConfig(path=tmp_path / "a.jsonl", id_key="id", data_dir=tmp_path / "data")
    stores = []
    for add in (0, 100):
        records = [{"id": n + add, "text": f"text {n}"} for n in range(10)]
        write_files({"a.jsonl": join_records(records)})
        stores.append(config.open_text())
        assert read_identifiers(stores[-1]) == [n + add for n in range(8)]
    assert stores[0].fingerprint == stores[1].fingerprint


def test_a_document_that_is_cut_and_one_of_a_text_file_have_what_identifies_them(
    write_files, tmp_path
):
    path = write_files({"a.jsonl": join_records([{"id": 1.5, "text": "abcd" * 20}])}) / "a.jsonl"
    config = DataConfig(path=path, id_key="id", split=(0.5, 0.25, 0.25), data_dir=tmp_path / "d")
    store = config.open_text()
    assert [read_identifiers(store, split) for split in ("train", "val", "test")] == [[1.5]] * 3
    folder = write_files({"0.txt": b"plain", "a.jsonl": join_records(RECORDS)}, "x")
    config = replace(config, path=str(folder), text_key="body", split=ALL_TRAIN)
    assert read_identifiers(config.open_text()) == [None, *range(20)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"document_unit": "lines"}, "id_key: invalid id; expected null with document_unit lines"),
        ({"document_unit": "none"}, "id_key: invalid id; expected null with document_unit none"),
        ({}, "id_key: invalid id; expected null, as no file is JSON lines"),
    ],
)
def test_an_identifier_that_no_document_can_have_is_refused(
    write_files, tmp_path, settings, message
):
    folder = write_files({"a.txt": b"a", "b.txt": b"b"}, "x")
    with pytest.raises(ValueError, match=message):
        DataConfig(path=folder, id_key="id", data_dir=tmp_path, **settings).open_text()


def test_slices_one_after_another_in_a_file_are_hashed_as_one(write_files, tmp_path):
    folder = write_files({"a": b"0123456789", "b": b"abcdefghij"})
    digits = folder / "a"
    letters = folder / "b"
    slices = [FileSlice(digits, *bounds) for bounds in ((0, 3), (3, 5), (6, 9))]
    slices += [FileSlice(letters, *bounds) for bounds in ((9, 10), (0, 2), (2, 2), (2, 4))]
    joined = join_neighbors(slices)
    assert [each.bounds for each in joined] == [(0, 5), (6, 9), (9, 10), (0, 4)]
    assert [*map(read_slice, joined)] == [b"01234", b"678", b"j", b"abcd"]
    assert join_neighbors([]) == []
    ids = np.arange(9)
    np.save(tmp_path / "ids.npy", ids)
    splits = split_id_files([tmp_path / "ids.npy"], IdOptions(), (0.4, 0.3, 0.3))
    [whole] = join_neighbors([part for parts in splits.values() for part in parts])
    assert b"".join(whole.chunks()) == ids.tobytes()


def test_all_records_of_a_file_are_hashed_at_once(write_files, tmp_path):
    path = write_files({"a.jsonl": join_records({"text": "a" * (n % 3)} for n in range(30))})
    config = DataConfig(path=path / "a.jsonl", data_dir=tmp_path / "data")
    slices = config.source.find_encoding().slices
    assert len(slices) == 20
    [whole] = join_neighbors(slices)
    assert read_slice(whole) == b"".join(map(read_slice, slices))


def test_a_damaged_file_of_identifiers_is_refused_and_a_copied_store_has_it(write_files, tmp_path):
    path = write_files({"a.jsonl": join_records(RECORDS)}) / "a.jsonl"
    config = DataConfig(path=path, text_key="body", id_key="id", data_dir=tmp_path / "data")
    store = prepare_folder(config.source.find_encoding(), tmp_path / "store", tmp_path / "data")
    fetched = open_store(store.folder.as_uri(), tmp_path / "there")
    assert read_identifiers(fetched) == read_identifiers(store) == [*range(18)]
    (store.folder / "train.identifiers").write_text("1\n")
    with pytest.raises(DataError, match=r"train\.identifiers: damaged: its checksum"):
        open_store(str(store.folder), tmp_path / "again")


def test_keys_have_no_effect_on_other_texts_and_the_standard_input_is_none(tmp_path):
    config = DataConfig(corpus="tiny_shakespeare", text_key="a", id_key="b", skip_bad_lines=True)
    assert config.list_unused().keys() == {"text_key", "id_key", "skip_bad_lines"}
    message = "path: invalid -; expected a file; or prepare - --out STORE, and data.store"
    with pytest.raises(ValueError, match=message):
        DataConfig(path="-")


def test_texts_of_python_are_saved_under_the_key_that_reads_them(tmp_path):
    settings = {"data_dir": tmp_path / "data", "text_key": "body", "split": ALL_TRAIN}
    data = CorpusDataModule.from_texts(["one", "two"], tmp_path / "a.jsonl", **settings)
    assert data.vocab.decode(data.store.ids("train")) == "onetwo"
    assert (tmp_path / "a.jsonl").read_text().startswith('{"body": "one"}')
