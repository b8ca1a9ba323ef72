"""JSON lines are known under any name, and a line without a text is refused with what it has."""

import json
from itertools import chain, pairwise

import pytest

from txl_lightning.data import json_lines
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.text_files import has_documents, split_user_files
from txl_lightning.errors import DataError

ALL_TRAIN = (1.0, 0.0, 0.0)
TEXTS = [b"one", "zwöi\r\n".encode(), b'{"text": "3"}']
LINES = [json.dumps({"id": 1, "text": text.decode()}).encode() for text in TEXTS]


def read(path, data_dir, any_bytes=False) -> list[bytes]:
    splits = split_user_files([path], ALL_TRAIN, data_dir, any_bytes)
    return [text for part in chain(*splits.values()) if (text := b"".join(part.chunks()))]


@pytest.mark.parametrize("any_bytes", [False, True])
@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.JSONL", "a.jsonlines", "a.json", "a"])
def test_json_lines_are_known_by_their_name_or_their_first_lines(
    write_files, tmp_path, capfd, name, any_bytes
):
    content = {f"x/{name}": b"\xef\xbb\xbf" + b"\n \n".join(LINES)}
    folder = write_files(content, "texts")
    for path in (folder / "x" / name, folder):
        assert read(path, tmp_path / "data", any_bytes) == TEXTS
        assert has_documents(path, tmp_path / "data")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_end_of_a_line_ends_a_json_line(write_files, tmp_path, end):
    # JSON may have the last of these as it is.
    lines = [*LINES, '{"text": "a\u2028b\x85c"}'.encode()]
    path = write_files({"a.json": end.join(lines)}) / "a.json"
    assert read(path, tmp_path / "data") == [*TEXTS, "a\u2028b\x85c".encode()]


def test_documents_end_with_the_ends_of_lines_and_with_no_other_character(write_files, tmp_path):
    lines = ["one\n", "\n", "3 \x0c!\r\n", "\r", "f\x0bg\x1ch\x85i\u2028j\u2029k\r", "l"]
    path = write_files({"b.txt": "".join(lines).encode()}) / "b.txt"
    options = {"document_unit": "lines", "split": ALL_TRAIN, "data_dir": tmp_path / "data"}
    for vocab in ("bytes", "characters", "words"):
        store = DataConfig(path=path, vocab=vocab, **options).open_text()
        starts = [*store.text("train").starts, len(store.ids("train"))]
        documents = [store.ids("train")[start:stop] for start, stop in pairwise(starts)]
        if vocab == "words":
            # Two line ends: that of the line, and that of its document.
            assert [len(each) for each in documents] == [2, 1, 3, 1, 7, 2]
        else:
            assert [store.vocab.decode(each.tolist()) for each in documents] == lines


def test_a_line_may_be_longer_than_64_mib_and_a_longer_one_is_refused_by_the_limit(
    write_files, tmp_path, monkeypatch
):
    assert json_lines.LONGEST_LINE > 1 << 26
    monkeypatch.setattr(json_lines, "LONGEST_LINE", 40)
    lines = [b'{"text": "%s"}' % (b"a" * n) for n in (27, 29)]
    path = write_files({"a.jsonl": lines[0] + b"\n"}) / "a.jsonl"
    assert read(path, tmp_path / "data") == [b"a" * 27]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=r"a\.jsonl: line 2 is longer than 40 bytes; put it into"):
        read(path, tmp_path / "data")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            b'{"text": "a"',
            r"has no text: it is not JSON \(Expecting ',' delimiter at character 13\)",
        ),
        (
            b'{"text": "cut',
            r"has no text: it is not JSON \(Unterminated string starting at character 10\)",
        ),
        (b"hello", r"has no text: it is not JSON \(Expecting value at character 1\)"),
        (b'{"id": 1, "message": "a"}', "has no text: there is no key text; its keys: id, message"),
        (b'{"Text": "a"}', "has no text: there is no key text; its keys: Text"),
        (b"{}", "has no text: there is no key text; its keys: none"),
        (b'{"text": null}', "has no text: its text is null"),
        (b'{"text": 3}', "has no text: its text is a number"),
        (b'{"text": ["a"]}', "has no text: its text is a list"),
        (b'{"text": true}', "has no text: its text is true or false"),
        (b"null", "has no text: it is null"),
        (b'["a"]', "has no text: it is a list"),
        (b'"a"', "has no text: it is a text"),
        (b"1" * 5000, "has no text: "),
        (b'{"text": "\xe9"}', "byte 10 is not UTF-8 text; if it is Latin-1: iconv"),
        (b'{"text": "a\\ud800"}', "character 2 is not UTF-8 text"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_line_without_a_text_is_refused_with_what_it_has(
    write_files, tmp_path, name, line, problem
):
    path = write_files({name: LINES[0] + b"\n\n" + line}) / name
    with pytest.raises(DataError, match=rf"{name}: line 3:? {problem}"):
        read(path, tmp_path / "data")


def test_json_lines_in_utf_16_are_refused_as_other_files_are(write_files, tmp_path, capfd):
    content = LINES[0].decode().encode("utf-16")
    folder = write_files({"a.jsonl": content, "b.txt": b"b"}, "texts")
    for any_bytes in (False, True):
        message = r"a\.jsonl: UTF-16 \(iconv -f UTF-16 -t UTF-8\); expected text in UTF-8$"
        with pytest.raises(DataError, match=message):
            read(folder / "a.jsonl", tmp_path / "data", any_bytes)
    assert read(folder, tmp_path / "data") == [b"b"]
    assert "skipped: a.jsonl (UTF-16) (1)" in capfd.readouterr().err


def test_json_without_a_text_is_refused_but_for_bytes_and_in_a_folder(write_files, tmp_path, capfd):
    content = b'{"message": "a"}\n'
    folder = write_files({"a": content, "b.json": b"[]", "c": b"c", "d.CSV": b"d,e"}, "texts")
    with pytest.raises(DataError, match="a: line 1 has no text: there is no key text; its keys: m"):
        read(folder / "a", tmp_path / "data")
    assert read(folder / "a", tmp_path / "data", any_bytes=True) == [content]
    assert "read as plain text" in capfd.readouterr().err
    assert read(folder, tmp_path / "data") == [content, b"[]", b"c", b"d,e"]
    assert capfd.readouterr().err.endswith(" make JSON lines: a, b.json, d.CSV (3)\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a", b' [\n {"text": "a"}]'),
        ("a", b'{\n"text": "a"}'),
        ("a.log", b'{\n"text": "a"}'),
        ("a.json", b'["a"]'),
        ("a.csv", b"id,text\n1,a"),
        ("A.TSV", b"id\ttext"),
    ],
)
def test_a_table_of_texts_is_read_as_plain_text_with_a_warning(
    write_files, tmp_path, capfd, name, content
):
    path = write_files({name: content}) / name
    assert read(path, tmp_path / "data") == [content]
    assert "read as plain text, with all its marks; for the texts in it" in capfd.readouterr().err


@pytest.mark.parametrize("content", [b"{curly} text", b"[1] a note", b"{\\bf a}", b"", b"{ }"])
def test_a_text_that_only_begins_like_json_is_plain_text(write_files, tmp_path, capfd, content):
    path = write_files({"a": content or b" "}) / "a"
    assert not has_documents(path, tmp_path / "data")
    assert read(path, tmp_path / "data", any_bytes=True) == [content or b" "]
    assert capfd.readouterr().err == ""
