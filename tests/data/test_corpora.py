"""Corpora by name, each from files under their canonical names, without network."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from txl_lightning.data import corpora, download, fingerprint
from txl_lightning.data.config import DataConfig
from txl_lightning.data.corpora import CORPORA, LM1B, CorpusFile, place_files
from txl_lightning.data.fingerprint import RemoteFile
from txl_lightning.data.vocab import WordOptions
from txl_lightning.errors import DataError

FRACTIONS = (0.9, 0.05, 0.05)


def joined(spans) -> bytes:
    return b"".join(chunk for span in spans for chunk in span.chunks())


def test_python_source_is_ascii_without_tests_and_sorted(tmp_path):
    splits = CORPORA["python_source"].find_splits(tmp_path, FRACTIONS)
    files = [span.path for name in ("train", "val", "test") for span in splits[name]]
    names = [path.as_posix() for path in files]
    assert len(files) > 300
    assert not any("/test/" in name or "/tests/" in name for name in names)
    assert all(path.read_bytes().isascii() for path in files)
    assert files == sorted(files, key=lambda path: path.relative_to(files[0].parent).as_posix())


def put(root, texts: dict[str, bytes]) -> None:
    """Files under their names."""
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)


@pytest.fixture
def unchecked(monkeypatch):
    """Any text passes for the real one, and nothing may be downloaded."""
    monkeypatch.setattr(corpora, "verify_file", lambda *_: None)
    monkeypatch.setattr(download, "download_file", lambda *_: pytest.fail("downloaded"))


LINES = {name: f" a b {name} \n c <unk> \n".encode() for name in ("train", "valid", "test")}
PLACED = {
    "tiny_shakespeare": {"tiny_shakespeare/input.txt": b"to be " * 100},
    "enwik8": {"enwik8/enwik8": b"\xc3\xa9<a>" * 100},
    "text8": {"text8/text8": b" anarchism originated" * 100},
    "wikitext2": {f"wikitext2/wiki.{n}.tokens": t for n, t in LINES.items()},
    "wikitext103": {f"wikitext103/wiki.{n}.tokens": t for n, t in LINES.items()},
    "ptb": {f"ptb/ptb.{n}.txt": t for n, t in LINES.items()},
    "ptb_char": {f"ptb/ptb.{n}.txt": t for n, t in LINES.items()},
    "lm1b": {f"lm1b/{name}": b"A word .\nA word again .\n" * 2 for name in LM1B},
}


@pytest.mark.parametrize("name", sorted(set(CORPORA) - {"python_source"}))
def test_a_corpus_in_its_place_is_used_without_network(tmp_path, unchecked, name):
    put(tmp_path, PLACED[name])
    splits = CORPORA[name].find_splits(tmp_path, FRACTIONS)
    assert set(splits) == {"train", "val", "test"}
    assert joined(splits["train"])


def opened(tmp_path, name: str, **changes):
    put(tmp_path, PLACED[name])
    return DataConfig(corpus=name, data_dir=str(tmp_path), **changes).open()


def test_wikitext_is_words_with_the_end_of_each_line(tmp_path, unchecked):
    store = opened(tmp_path, "wikitext2")
    text = store.vocab.decode(store.ids("train").tolist())
    assert text == "a b train\nc <unk>\n"
    assert store.vocab.unit == "word"
    # `valid` was never seen in train.
    assert store.vocab.decode(store.ids("val").tolist()) == "a b <unk>\nc <unk>\n"


def test_one_billion_word_has_a_document_in_each_line(tmp_path, unchecked):
    store = opened(tmp_path, "lm1b")
    ids = store.ids("val").tolist()
    assert [store.vocab.words[index] for index in ids[:5]] == ["<S>", "A", "word", ".", "<S>"]
    assert store.text("val").starts.tolist() == [0, 5, 11, 16]
    # The first <S> of each sentence is not scored and stands for nothing.
    assert store.bytes_per_token("val") == 48 / (22 - 4)


def test_characters_of_penn_treebank_have_no_spaces_at_line_ends(tmp_path, unchecked):
    store = opened(tmp_path, "ptb_char")
    assert store.vocab.decode(store.ids("train").tolist()) == "a b train\nc <unk>\n"
    assert store.vocab.unit == "character"


def test_enwik8_is_cut_by_bytes_as_published(tmp_path, unchecked):
    put(tmp_path, PLACED["enwik8"])
    splits = CORPORA["enwik8"].find_splits(tmp_path, FRACTIONS)
    cuts = [(span.start, span.stop) for name in splits for span in splits[name]]
    assert cuts == [(0, 90_000_000), (90_000_000, 95_000_000), (95_000_000, 100_000_000)]


def test_another_file_in_its_place_is_refused_and_the_right_one_is_verified_once(
    tmp_path, monkeypatch
):
    checksum = "sha256:" + hashlib.sha256(b"to be").hexdigest()
    remote = RemoteFile("http://127.0.0.1:9/none", 5, checksum)
    files = [CorpusFile("some/text.txt", checksum, remote)]
    monkeypatch.setattr(fingerprint, "SETTLED", 0)
    put(tmp_path, {"some/text.txt": b"to me"})
    with pytest.raises(DataError, match=r"text\.txt: another file \(sha256 \w+, not \w+\)"):
        place_files(files, tmp_path)
    put(tmp_path, {"some/text.txt": b"to be"})
    assert place_files(files, tmp_path) == [tmp_path / "some/text.txt"]
    with monkeypatch.context() as patch:
        patch.setattr(corpora, "verify_file", lambda *_: pytest.fail("verified again"))
        place_files(files, tmp_path)
    put(tmp_path, {"some/text.txt": b"to me again"})
    with pytest.raises(DataError, match=r"text\.txt"):
        place_files(files, tmp_path)


def test_members_that_are_missing_are_taken_out_of_the_archive(tmp_path):
    (tmp_path / "downloads").mkdir()
    with zipfile.ZipFile(tmp_path / "downloads" / "some.zip", "w") as file:
        file.writestr("inner/a", b"a")
        file.writestr("inner/b", b"b")
    checksum = hashlib.sha256((tmp_path / "downloads" / "some.zip").read_bytes()).hexdigest()
    remote = RemoteFile("http://127.0.0.1:9/some.zip", 5, f"sha256:{checksum}")
    files = corpora.list_members("some", remote, {"inner/a": None, "inner/b": None})
    put(tmp_path, {"some/b": b"own"})
    assert [path.read_bytes() for path in place_files(files, tmp_path)] == [b"a", b"own"]
    (tmp_path / "some" / "a").unlink()
    put(tmp_path, {"downloads/some.zip": b"cut"})
    with pytest.raises(DataError, match=r"some/a: missing; .*some\.zip: another file"):
        place_files(files, tmp_path)


def test_a_word_option_leaves_the_others_of_the_corpus(tmp_path, unchecked):
    put(tmp_path, PLACED["lm1b"])
    config = DataConfig(corpus="lm1b", data_dir=str(tmp_path), words=WordOptions(max_size=2))
    words = config.recipe().words
    assert (words.max_size, words.min_freq, words.line_end) == (2, 3, "double_eos")


def test_a_path_takes_precedence_over_a_task(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"to be " * 100)
    config = DataConfig(
        corpus="sort", path=str(tmp_path / "a.txt"), data_dir=str(tmp_path / "data")
    )
    assert len(config.open().ids("train")) == 540


def test_the_data_folder_is_the_setting_or_the_variable_or_data(monkeypatch):
    monkeypatch.setenv("TXL_DATA", "there")
    assert DataConfig(data_dir="here").data_folder == Path("here")
    assert DataConfig().data_folder == Path("there")
    monkeypatch.delenv("TXL_DATA")
    assert DataConfig().data_folder == Path("data")


@pytest.mark.slow
def test_preparing_words_imports_nothing_heavy(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"to be or not to be " * 100)
    script = (
        "import sys; from txl_lightning.__main__ import run; "
        "run(['prepare', 'a.txt', '--vocab=words']); "
        "print({'torch', 'lightning', 'requests', 'tokenizers'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
