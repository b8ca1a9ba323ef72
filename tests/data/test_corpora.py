"""Corpora by name, each from files under their canonical names, without network."""

import hashlib
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from txl_lightning import files
from txl_lightning.data import corpora, download
from txl_lightning.data.corpora import CORPORA, LM1B_MEMBERS, RemoteFile, place_file
from txl_lightning.data.encoding import Encoding
from txl_lightning.data.id_files import IdOptions
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.tasks import TaskConfig
from txl_lightning.data.vocab import SubwordOptions, WordOptions
from txl_lightning.errors import DataError, StorageError

EOS = WordOptions().fill()
NEWS = WordOptions(3, line_end="double_eos").fill()
LINES = {name: f" a b {name} \n c <unk> \n".encode() for name in ("train", "valid", "test")}
SENTENCES = {f"lm1b/{name}": b"A word .\n%d\n" % n for n, name in enumerate(LM1B_MEMBERS)}
PTB = {f"ptb/ptb.{name}.txt": text for name, text in LINES.items()}
# The files, vocabulary, words, unit of documents and text of val.
PLACED = {
    "tiny_shakespeare": ({"tiny_shakespeare/input.txt": b"to" * 100}, "characters", EOS, b"to" * 5),
    "enwik8": ({"enwik8/enwik8": b"\xc3\xa9<a>" * 100}, "bytes", EOS, b""),
    "text8": ({"text8/text8": b" anarchism originated" * 100}, "characters", EOS, b""),
    "ptb": (PTB, "words", WordOptions(lower_case=True).fill(), LINES["valid"]),
    "ptb_char": (PTB, "characters", EOS, b"a b valid\nc <unk>\n"),
    "lm1b": (SENTENCES, "words", NEWS, b"A word .\n99\n"),
} | {
    name: ({f"{name}/wiki.{n}.tokens": t for n, t in LINES.items()}, "words", EOS, LINES["valid"])
    for name in ("wikitext2", "wikitext103")
}


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture
def place_corpus(write_files, monkeypatch):
    """Replace the files of a corpus by a text that passes verification, without a download."""
    monkeypatch.setattr(corpora, "verify_file", lambda *_: None)
    monkeypatch.setattr(download, "download_file", lambda *_: pytest.fail("downloaded"))

    def place(name: str, **changes) -> Encoding:
        folder = write_files(PLACED[name][0])
        return DataConfig(corpus=name, data_dir=str(folder), **changes).source.find_encoding()

    return place


@pytest.mark.parametrize("name", PLACED)
def test_existing_corpus_files_are_used_as_published_without_network(place_corpus, name):
    encoding = place_corpus(name)
    _, vocab, words, val = PLACED[name]
    assert (encoding.vocab, encoding.words) == (vocab, words)
    assert encoding.document_unit == ("lines" if name == "lm1b" else None)
    assert b"".join(chunk for part in encoding.splits["val"] for chunk in part.chunks()) == val
    if name == "enwik8":
        cuts = [(part.start, part.stop) for [part] in encoding.splits.values()]
        assert cuts == [(0, 90_000_000), (90_000_000, 95_000_000), (95_000_000, 100_000_000)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lm1b", {"max_size": 2}),
        # Equal to the general defaults.
        ("ptb", {"lower_case": False}),
        ("lm1b", {"min_freq": 0, "line_end": "eos"}),
    ],
)
def test_a_word_option_overrides_that_of_the_corpus_and_keeps_the_others(
    place_corpus, name, options
):
    words = place_corpus(name, words=WordOptions(**options)).words
    others = place_corpus(name).words
    assert words == replace(others, **options) != others


@pytest.mark.parametrize(
    "settings", [{"corpus": "enwik8"}, {"corpus": "sort"}, {"path": ["a", "b", "c"]}], ids=str
)
def test_fractions_are_refused_for_a_text_with_splits_of_its_own(settings):
    with pytest.raises(ValueError, match=r"^split: invalid \[0.8, .*; .* splits of its own$"):
        DataConfig(split=(0.8, 0.1, 0.1), **settings)
    assert DataConfig(split=(0.9, 0.05, 0.05), **settings).split == DataConfig.split


OF_A_TEXT = {"vocab", "id_options"}
CASE = WordOptions(lower_case=True)
SIZE = SubwordOptions(999)


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({"words": CASE, "subwords": SIZE}, {"words", "subwords"}),
        ({"corpus": "text8", "words": CASE, "task": TaskConfig(3)}, {"words", "task"}),
        ({"corpus": "ptb", "words": CASE, "subwords": SIZE}, {"subwords"}),
        ({"vocab": "bpe", "words": WordOptions(line_end="eos"), "subwords": SIZE}, {"words"}),
        ({"path": "a.txt", "vocab": "words.txt", "words": CASE, "split": (0.8, 0.1, 0.1)}, set()),
        ({"corpus": "sort", "vocab": "bytes", "task": TaskConfig(3)}, {"vocab"}),
        ({"corpus": "sort", "document_unit": "lines", "words": CASE}, {"document_unit", "words"}),
        ({"store": "a", "vocab": "words", "id_options": IdOptions("uint16")}, OF_A_TEXT),
        (
            {"ids": "a.npy", "vocab": "a.json", "words": CASE, "subwords": SIZE},
            {"words", "subwords"},
        ),
        ({"path": "a.txt", "data_dir": "b", "id_options": IdOptions("uint16")}, {"id_options"}),
    ],
)
def test_settings_without_effect_are_known(settings, unused):
    assert DataConfig(**settings).list_unused().keys() == unused


def test_settings_without_effect_are_warned_of_when_a_text_is_opened(text_file, tmp_path):
    config = DataConfig(path=text_file, data_dir=tmp_path, words=CASE, task=TaskConfig(3))
    with pytest.warns(UserWarning, match="no effect") as warned:
        config.open_text()
    assert [str(each.message) for each in warned] == [
        f"data.task: no effect, because {text_file} is a text",
        "data.words: no effect, because the vocabulary is bytes",
    ]


@pytest.mark.slow
def test_python_source_is_ascii_without_tests_and_sorted(tmp_path):
    splits = CORPORA["python_source"].find_splits(tmp_path, (0.9, 0.05, 0.05))
    files = [part.path for name in ("train", "val", "test") for part in splits[name]]
    assert len(files) > 300
    assert not any({"test", "tests"} & {*path.parts} for path in files)
    assert all(path.read_bytes().isascii() for path in files)
    assert files == sorted(files, key=lambda path: path.relative_to(files[0].parent).as_posix())


def test_each_split_of_one_billion_words_is_the_published_part(place_corpus):
    # As in the original: heldout-00000 is the test text, and heldout-00001 that of validation.
    splits = place_corpus("lm1b").splits
    held_out = {name: [part.path.name for part in splits[name]] for name in ("val", "test")}
    assert held_out == {
        "val": ["news.en.heldout-00001-of-00050"],
        "test": ["news.en.heldout-00000-of-00050"],
    }
    assert [part.path.name for part in splits["train"]] == [
        f"news.en-{n:05}-of-00100" for n in range(1, 100)
    ]


def test_corpus_file_is_verified_when_it_changes_and_refused_if_it_differs(
    write_files, tmp_path, monkeypatch
):
    remote = RemoteFile("http://127.0.0.1:9/text.txt", 5, sha256(b"to be"))
    monkeypatch.setattr(files, "MIN_AGE", 0)
    for text in (b"to me", b"to me again"):
        write_files({"some/text.txt": text})
        with pytest.raises(DataError, match=r"text\.txt: wrong file \(sha256 \w+, not \w+\)"):
            place_file(remote, tmp_path / "some")
        write_files({"some/text.txt": b"to be"})
        assert place_file(remote, tmp_path / "some") == [tmp_path / "some" / "text.txt"]
        with monkeypatch.context() as patch:
            patch.setattr(corpora, "verify_file", lambda *_: pytest.fail("verified again"))
            place_file(remote, tmp_path / "some")


@pytest.mark.parametrize("kind", ["some.zip", "some.tar.gz"])
def test_missing_members_are_extracted_from_the_archive_if_it_is_the_right_one(
    write_files, tmp_path, limit_file_size, kind
):
    folder = write_files({"some/b": b"own", "inner/a": b"a" * 200_000, "inner/b": b"b"})
    archive = write_files({f"downloads/{kind}": b""}) / "downloads" / kind
    if kind == "some.zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.write(folder / "inner" / "a", "inner/a")
    else:
        with tarfile.open(archive, "w:gz") as file:
            file.add(folder / "inner", "inner")
    checksums = {"inner/a": None, "inner/b": sha256(b"own")}
    content = archive.read_bytes()
    remote = RemoteFile(f"http://127.0.0.1:9/{kind}", 5, sha256(content), checksums)
    message = "cannot be written .File too large"
    with limit_file_size(100_000), pytest.raises(StorageError, match=message):
        place_file(remote, tmp_path / "some")
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["b"]
    assert {path.suffix for path in (tmp_path / "downloads").iterdir()} <= {archive.suffix}
    paths = place_file(remote, tmp_path / "some")
    assert [path.read_bytes() for path in paths] == [b"a" * 200_000, b"own"]
    (tmp_path / "some" / "a").unlink()
    archive.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"some/a: missing; .*some\.\w+.*: wrong file"):
        place_file(remote, tmp_path / "some")


def test_data_folder_is_the_setting_or_the_variable_or_data(monkeypatch):
    monkeypatch.setenv("TXL_DATA", "there")
    assert DataConfig(data_dir="here").data_folder == Path("here")
    assert DataConfig().data_folder == Path("there")
    monkeypatch.delenv("TXL_DATA")
    assert DataConfig().data_folder == Path("data")
