"""Corpora by name, each from files under their canonical names, without network."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from txl_lightning.data import corpora, documents, download
from txl_lightning.data.config import DataConfig
from txl_lightning.data.corpora import CORPORA, LM1B, CorpusFile, list_members, place_files
from txl_lightning.data.documents import RemoteFile
from txl_lightning.data.store import Recipe
from txl_lightning.data.vocab import WordOptions
from txl_lightning.errors import DataError

FRACTIONS = (0.9, 0.05, 0.05)
EOS = WordOptions()
LINES = {name: f" a b {name} \n c <unk> \n".encode() for name in ("train", "valid", "test")}
SENTENCES = {f"lm1b/{name}": b"A word .\n%d\n" % n for n, name in enumerate(LM1B)}
PTB = {f"ptb/ptb.{name}.txt": text for name, text in LINES.items()}
# The files, vocabulary, words, unit of documents and text of val.
PLACED = {
    "tiny_shakespeare": ({"tiny_shakespeare/input.txt": b"to" * 100}, "characters", EOS, b"to" * 5),
    "enwik8": ({"enwik8/enwik8": b"\xc3\xa9<a>" * 100}, "bytes", EOS, b""),
    "text8": ({"text8/text8": b" anarchism originated" * 100}, "characters", EOS, b""),
    "ptb": (PTB, "words", WordOptions(lower_case=True), LINES["valid"]),
    "ptb_char": (PTB, "characters", EOS, b"a b valid\nc <unk>\n"),
    "lm1b": (SENTENCES, "words", WordOptions(3, line_end="double_eos"), b"A word .\n100\n"),
} | {
    name: ({f"{name}/wiki.{n}.tokens": t for n, t in LINES.items()}, "words", EOS, LINES["valid"])
    for name in ("wikitext2", "wikitext103")
}


@pytest.fixture
def place_corpus(write_files, monkeypatch):
    """Put a text in a corpus's place: it passes for the real one, and nothing is downloaded."""
    monkeypatch.setattr(corpora, "verify_file", lambda *_: None)
    monkeypatch.setattr(download, "download_file", lambda *_: pytest.fail("downloaded"))

    def place(name: str, **changes) -> Recipe:
        folder = write_files(PLACED[name][0])
        return DataConfig(corpus=name, data_dir=str(folder), **changes).recipe()

    return place


@pytest.mark.parametrize("name", PLACED)
def test_corpus_in_its_place_is_used_as_published_without_network(place_corpus, name):
    recipe, (_, vocab, words, val) = place_corpus(name), PLACED[name]
    assert (recipe.vocab, recipe.words) == (vocab, words)
    assert recipe.document_unit == ("lines" if name == "lm1b" else None)
    assert b"".join(chunk for part in recipe.splits["val"] for chunk in part.chunks()) == val


def test_enwik8_is_cut_by_bytes_as_published(place_corpus):
    cuts = [(part.start, part.stop) for [part] in place_corpus("enwik8").splits.values()]
    assert cuts == [(0, 90_000_000), (90_000_000, 95_000_000), (95_000_000, 100_000_000)]


def test_word_option_leaves_the_others_of_the_corpus(place_corpus):
    words = place_corpus("lm1b", words=WordOptions(max_size=2)).words
    assert words == WordOptions(max_size=2, min_freq=3, line_end="double_eos")


@pytest.mark.slow
def test_python_source_is_ascii_without_tests_and_sorted(tmp_path):
    splits = CORPORA["python_source"].find_splits(tmp_path, FRACTIONS)
    files = [part.path for name in ("train", "val", "test") for part in splits[name]]
    assert len(files) > 300
    assert not any({"test", "tests"} & {*path.parts} for path in files)
    assert all(path.read_bytes().isascii() for path in files)
    assert files == sorted(files, key=lambda path: path.relative_to(files[0].parent).as_posix())


def test_corpus_file_is_verified_when_it_changes_and_refused_if_it_is_another(
    write_files, tmp_path, monkeypatch
):
    checksum = "sha256:" + hashlib.sha256(b"to be").hexdigest()
    files = [CorpusFile("text.txt", checksum, RemoteFile("http://127.0.0.1:9/none", 5, checksum))]
    monkeypatch.setattr(documents, "SETTLED", 0)
    for text in (b"to me", b"to me again"):
        write_files({"text.txt": text})
        with pytest.raises(DataError, match=r"text\.txt: another file \(sha256 \w+, not \w+\)"):
            place_files(files, tmp_path)
        write_files({"text.txt": b"to be"})
        assert place_files(files, tmp_path) == [tmp_path / "text.txt"]
        with monkeypatch.context() as patch:
            patch.setattr(corpora, "verify_file", lambda *_: pytest.fail("verified again"))
            place_files(files, tmp_path)


def test_missing_members_are_extracted_from_the_archive_if_it_is_the_right_one(
    write_files, tmp_path
):
    write_files({"some/b": b"own", "downloads/some.zip": b""})
    with zipfile.ZipFile(tmp_path / "downloads" / "some.zip", "w") as file:
        file.writestr("inner/a", b"a")
        file.writestr("inner/b", b"b")
    checksum = hashlib.sha256((tmp_path / "downloads" / "some.zip").read_bytes()).hexdigest()
    remote = RemoteFile("http://127.0.0.1:9/some.zip", 5, f"sha256:{checksum}")
    files = list_members("some", remote, {"inner/a": None, "inner/b": None})
    assert [path.read_bytes() for path in place_files(files, tmp_path)] == [b"a", b"own"]
    (tmp_path / "some" / "a").unlink()
    write_files({"downloads/some.zip": b"cut"})
    with pytest.raises(DataError, match=r"some/a: missing; .*some\.zip: another file"):
        place_files(files, tmp_path)


def test_path_takes_precedence_over_a_task(write_files):
    folder = write_files({"a.txt": b"to be " * 100})
    config = DataConfig(corpus="sort", path=str(folder / "a.txt"), data_dir=str(folder / "data"))
    assert len(config.open().ids("train")) == 540


def test_data_folder_is_the_setting_or_the_variable_or_data(monkeypatch):
    monkeypatch.setenv("TXL_DATA", "there")
    assert DataConfig(data_dir="here").data_folder == Path("here")
    assert DataConfig().data_folder == Path("there")
    monkeypatch.delenv("TXL_DATA")
    assert DataConfig().data_folder == Path("data")


@pytest.mark.slow
def test_preparing_words_imports_nothing_heavy(write_files):
    folder = write_files({"a.txt": b"to be or not to be " * 100})
    script = (
        "import sys; from txl_lightning.__main__ import run; "
        "run(['prepare', 'a.txt', '--vocab=words']); "
        "print({'torch', 'lightning', 'requests', 'tokenizers'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
