"""Tokens on disk, for training and for evaluation."""

import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from txl_lightning import files, terminal
from txl_lightning.data import encoding as encoding_module
from txl_lightning.data import text_files
from txl_lightning.data.encoding import Encoding, encode_slices, prepare_text
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.store import EvalText
from txl_lightning.data.text_files import SPLITS, FileSlice, slice_file, split_by_fractions
from txl_lightning.data.vocab import Bytes, Characters, WordOptions, Words, subwords
from txl_lightning.errors import DataError, StorageError

ALL_TRAIN = (1.0, 0.0, 0.0)
ALL_TEST = (0.0, 0.0, 1.0)
WORDS = Words.from_list(["ab", "cd"], WordOptions())


@pytest.fixture
def encoding(write_files):
    """Make the encoding of one text, which is split, or of several, all of them in every split."""

    def make(*texts: bytes, vocab="bytes", cut=(0.5, 0.25, 0.25), **changes) -> Encoding:
        names = {f"{len(texts)}{n}.txt": text for n, text in enumerate(texts)}
        folder = write_files(names)
        slices = [part for name in names for part in slice_file(folder / name)]
        one = len(texts) == 1
        splits = split_by_fractions(slices, cut) if one else dict.fromkeys(SPLITS, slices)
        return Encoding(splits, str(vocab), **changes)

    return make


@pytest.fixture
def prepare(tmp_path, encoding):
    return lambda *texts, **changes: prepare_text(encoding(*texts, **changes), tmp_path)


@pytest.fixture
def encode(tmp_path):
    """Encode a user's own text with an existing vocabulary."""

    def run(text: bytes, vocab, name="own.txt", cut=ALL_TEST) -> EvalText:
        (tmp_path / name).write_bytes(text)
        where = {"path": str(tmp_path / name), "data_dir": str(tmp_path)}
        return DataConfig(split=cut, **where).source.encode("test", vocab, tmp_path)

    return run


# 256 ids fit in a byte: 254 words and two symbols.
@pytest.mark.parametrize(("n_word", "dtype"), [(254, np.uint8), (255, np.uint16)])
def test_ids_are_memory_mapped_in_the_smallest_type(prepare, n_word, dtype):
    text = " ".join(f"w{n}" for n in range(n_word)).encode()
    store = prepare(text, vocab="words", cut=ALL_TRAIN)
    ids = store.ids("train")
    assert (type(ids), ids.dtype) == (np.memmap, dtype)
    assert store.vocab.decode(ids.tolist()[:3]) == "w0 w1 w2"
    assert len(store.ids("val")) == 0


def test_prepared_text_is_neither_read_nor_written_again(tmp_path, encoding, monkeypatch):
    def times() -> dict:
        files = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
        return {path: path.stat().st_mtime_ns for path in files}

    monkeypatch.setattr(files, "MIN_AGE", 0)
    made = encoding(b"abcdabcd")
    first = prepare_text(made, tmp_path / "data")
    before = times()
    monkeypatch.setattr(FileSlice, "chunks", lambda self: pytest.fail("read again"))
    again = prepare_text(made, tmp_path / "data")
    assert (again.folder, again.ids("train").tolist()) == (first.folder, [*b"abcd"])
    assert times() == before


def test_everything_that_changes_the_tokens_gives_another_store(tmp_path, prepare):
    text = b"ab cd\nab cd\n"
    stores = [
        prepare(text),
        prepare(text, vocab="characters"),
        prepare(text, vocab="words"),
        prepare(text, vocab="words", words=WordOptions(line_end="none")),
        prepare(text, cut=ALL_TRAIN),
        prepare(text, document_unit="lines"),
        prepare(text, document_unit="files"),
        # A file that has just changed is read again.
        prepare(b"ab cd\nab ce\n"),
        *(prepare(*texts) for texts in ((b"ab", b"cd"), (b"abc", b"d"), (b"abcd", b""))),
    ]
    assert len({store.folder for store in stores}) == len(stores)
    assert len({store.fingerprint for store in stores}) == len(stores)
    (tmp_path / "mine.json").write_text(stores[1].vocab.to_json())
    assert prepare(text, vocab=tmp_path / "mine.json").fingerprint == stores[1].fingerprint


@given(
    text=st.lists(st.sampled_from([b"\n", b"ab", b"c" * 9, b"d" * 40])).map(b"".join),
    skipped=st.integers(0, 5),
)
def test_documents_are_complete_and_their_chunks_short_at_any_chunk_boundary(text, skipped):
    def text_of(part) -> bytes:
        chunks = list(part.chunks())
        assert all(len(chunk) <= 8 for chunk in chunks)
        return b"".join(chunks)

    with pytest.MonkeyPatch.context() as patch, tempfile.NamedTemporaryFile() as file:
        patch.setattr(text_files, "CHUNK", 8)
        Path(file.name).write_bytes(b"x" * skipped + text)
        whole = FileSlice(Path(file.name), skipped, skipped + len(text))
        assert text_of(whole) == text
        lines = [(line.start, text_of(line)) for line in whole.split_lines()]
    assert [line for _, line in lines] == text.splitlines(keepends=True)
    sizes = [len(line) for _, line in lines]
    assert [start for start, _ in lines] == [skipped, *(skipped + np.cumsum(sizes))][: len(lines)]


def test_documents_begin_where_lines_or_files_do(prepare):
    lines = prepare(b"one\ntwo words\n\nthree", cut=ALL_TRAIN, document_unit="lines")
    assert lines.text("train").starts.tolist() == [0, 4, 14, 15]
    for unit, starts in (("files", [0, 5, 10]), (None, [0])):
        store = prepare(*[b"12345"] * 3, document_unit=unit)
        assert store.text("train").starts.tolist() == starts
        assert bytes(store.ids("train")) == b"12345" * 3


PIECES = b"ab cd\nef  g\n\n h\r\nab\n" * 5 + b"x" * 70 + b"\nab cd\nef"


@pytest.mark.parametrize(
    ("vocab", "unit"),
    [(vocab, None) for vocab in ("bytes", "characters", "words", "bpe")]
    + [(vocab, unit) for unit in ("files", "lines") for vocab in ("bytes", "words")],
)
def test_text_in_pieces_has_the_tokens_and_documents_of_one_piece(
    tmp_path, encoding, monkeypatch, vocab, unit
):
    words = WordOptions(line_end="double_eos", lower_case=True)
    made = encoding(PIECES, PIECES[:40], b"a", vocab=vocab, document_unit=unit, words=words)
    whole = prepare_text(made, tmp_path / "whole")
    monkeypatch.setattr(encoding_module, "PIECE_BYTES", 14)
    assert len([*encoding_module.plan_pieces(made.splits["train"], Bytes())]) > 9
    pieces = prepare_text(made, tmp_path / "pieces")
    assert pieces.fingerprint == whole.fingerprint
    for split in SPLITS:
        one = whole.text(split)
        two = pieces.text(split)
        np.testing.assert_array_equal(one.ids, two.ids)
        np.testing.assert_array_equal(one.starts, two.starts)


SPACES = [chr(code) for code in range(0x110000) if chr(code).isspace()]


@pytest.mark.parametrize("space", SPACES, ids=ascii)
@pytest.mark.parametrize("chunk", [7, 8, 9, 1000])
def test_no_piece_begins_or_ends_beside_white_space_of_any_kind(
    encoding, monkeypatch, space, chunk
):
    monkeypatch.setattr(encoding_module, "PIECE_BYTES", 14)
    monkeypatch.setattr(encoding_module, "CHUNK", chunk)
    text = f"第一\n{space}二三{space}\nde\n".encode() * 20
    [part] = encoding(text, cut=ALL_TRAIN).splits["train"]
    pieces = [piece for [piece] in encoding_module.plan_pieces([part], Bytes())]
    assert len(pieces) == 20
    for piece in pieces:
        assert text[piece.start :].startswith("第一\n".encode())


@pytest.mark.parametrize("end", ["\r\n", ""])
def test_a_text_without_a_place_to_cut_is_one_piece_also_if_its_file_became_shorter(
    encoding, monkeypatch, end
):
    monkeypatch.setattr(encoding_module, "PIECE_BYTES", 14)
    [part] = encoding(f"a line{end}".encode() * 20, cut=ALL_TRAIN).splits["train"]
    assert [*encoding_module.plan_pieces([part], Bytes())] == [[part]]
    part.path.write_bytes(part.path.read_bytes()[:50])
    assert [*encoding_module.plan_pieces([part], Bytes())] == [[part]]


def test_indented_chinese_text_in_pieces_has_the_tokens_of_one_piece(
    tmp_path, encoding, monkeypatch
):
    codes = np.random.default_rng(0).integers(0x4E00, 0x4E30, 3000).tolist()
    ends = {0: "。\n\u3000\u3000", 1: "。\n"}
    text = "".join(chr(code) + ends.get(code % 7, "") for code in codes)
    made = encoding(text.encode(), vocab="bpe", subwords=subwords.SubwordOptions(n_token=300))
    whole = prepare_text(made, tmp_path / "whole")
    monkeypatch.setattr(encoding_module, "PIECE_BYTES", 1000)
    pieces = prepare_text(made, tmp_path / "pieces")
    np.testing.assert_array_equal(whole.ids("train"), pieces.ids("train"))


@pytest.mark.parametrize("prefix", ["always", "never"])
def test_a_tokenizer_that_joins_lines_encodes_a_file_in_one_piece(
    tmp_path, encoding, monkeypatch, prefix
):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix)
    lines = "the cat sat\non the mat\nand slept\n" * 9
    trainer = trainers.BpeTrainer(vocab_size=100, show_progress=False)
    tokenizer.train_from_iterator([lines], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(encoding_module, "PIECE_BYTES", 14)
    made = encoding(lines.encode(), vocab=tmp_path / "tokenizer.json", cut=ALL_TRAIN)
    store = prepare_text(made, tmp_path)
    assert store.ids("train").tolist() == store.vocab.encode_text(lines).tolist()


def test_a_document_begins_at_its_first_token_although_its_first_piece_has_none(
    encoding, monkeypatch, tmp_path
):
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(encoding_module, "SHORT_BYTES", 3)
    monkeypatch.setattr(subwords, "PIECE_LEN", 10)
    texts = (b"ab ab", b"?? ?? ?? ?? ?? ab ?? ?? ?? ?? ab", b"b", b"?? ?? ?? ?? ??", b"a")
    made = encoding(*texts, vocab=tmp_path / "tokenizer.json", document_unit="files")
    text = prepare_text(made, tmp_path).text("train")
    assert text.ids.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 1, 0]
    assert text.starts.tolist() == [0, 4, 8, 9]


@pytest.mark.parametrize("unit", [None, "files", "lines"])
def test_progress_counts_every_byte_that_is_encoded(tmp_path, encoding, monkeypatch, unit):
    advanced = []
    made = encoding(b"ab\ncde\n" * 10, cut=ALL_TRAIN, document_unit=unit)
    (tmp_path / "vocab.json").write_text(Bytes().to_json())
    monkeypatch.setattr(encoding_module, "PIECE_BYTES", 20)
    encoded = encode_slices(made.splits["train"], tmp_path / "vocab.json", unit, 1, advanced.append)
    assert b"".join(ids.tobytes() for ids, *_ in encoded) == b"ab\ncde\n" * 10
    assert (sum(advanced), len(advanced) > 2) == (70, True)


@pytest.mark.parametrize(
    ("vocab", "unit", "expected"),
    [
        ("bytes", None, "98fa2d41d8bd3f8b"),
        ("words", "lines", "c8f72efec0cb8093"),
        ("characters", "files", "57c6b8b0e361692f"),
    ],
)
def test_fingerprints_of_texts_are_those_in_checkpoints_of_earlier_versions(
    tmp_path, vocab, unit, expected
):
    (tmp_path / "t.txt").write_text("a b c\nd e f\n\ng a b\n" * 50)
    where = {"path": str(tmp_path / "t.txt"), "data_dir": str(tmp_path)}
    assert DataConfig(vocab=vocab, document_unit=unit, **where).open_text().fingerprint == expected


def test_manifest_has_the_recipe_and_the_counts(prepare):
    store = prepare(b"a b a b c d a b ", vocab="words", words=WordOptions(min_freq=2))
    assert store.vocab.words == ("<eos>", "a", "b", "<unk>")
    assert len(store.manifest["text"]) == 64
    assert (store.manifest["vocab"], store.manifest["words"]["min_freq"]) == ("words", 2)
    assert store.manifest["bytes"] == {"train": 8, "val": 4, "test": 4}
    assert store.manifest["tokens"] == {"train": 5, "val": 3, "test": 3}
    assert store.manifest["unknown"] == {"train": 0, "val": 2, "test": 0}
    assert set(prepare(b"abcd").manifest["unknown"].values()) == {0}


@pytest.mark.parametrize(
    ("line_end", "bytes_per_token"), [("eos", 8 / 6), ("double_eos", 8 / 6), ("none", 8 / 4)]
)
def test_bytes_per_token_do_not_count_the_symbol_that_starts_a_document(
    prepare, line_end, bytes_per_token
):
    how = {"words": WordOptions(line_end=line_end), "document_unit": "lines"}
    store = prepare(b"a b\na b\n", vocab="words", cut=ALL_TRAIN, **how)
    assert store.bytes_per_token("train") == bytes_per_token


def test_text_that_cannot_be_encoded_or_stored_leaves_nothing_behind(
    tmp_path, encoding, monkeypatch
):
    with pytest.raises(DataError, match="is not UTF-8"):
        prepare_text(encoding(b"\xff\xfe\xfd\xfc", vocab="characters"), tmp_path / "data")
    assert [path.suffix for path in (tmp_path / "data" / "prepared").iterdir()] == [".lock"]
    monkeypatch.setattr(files, "MIN_AGE", 0)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/prepared/\w+: cannot be written \("):
        prepare_text(encoding(b"abcdabcd"), tmp_path / "file")


DYING_BUILD = """
import os, signal
from pathlib import Path
from txl_lightning.data import encoding
from txl_lightning.data.text_files import slice_file
encoding.build_store = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
splits = dict.fromkeys(("train", "val", "test"), slice_file(Path("20.txt")))
encoding.prepare_text(encoding.Encoding(splits), Path("."))
"""


@pytest.mark.slow
def test_killed_builder_does_not_block_the_next(tmp_path, encoding):
    made = encoding(b"abcd", b"")
    done = subprocess.run([sys.executable, "-c", DYING_BUILD], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "prepared").glob("*.part-*"))
    assert bytes(prepare_text(made, tmp_path).ids("train")) == b"abcd"
    assert not list((tmp_path / "prepared").glob("*.part-*"))


def test_one_of_two_builders_builds_and_the_other_waits(tmp_path, encoding, monkeypatch):
    made = encoding(b"abcd")
    build = Encoding.build
    built = []

    def build_slowly(*args, **options):
        built.append(args)
        time.sleep(0.2)
        build(*args, **options)

    monkeypatch.setattr(Encoding, "build", build_slowly)
    with ThreadPoolExecutor(2) as pool:
        stores = list(pool.map(prepare_text, [made] * 2, [tmp_path] * 2))
    assert stores[0] == stores[1]
    assert len(built) == 1


def test_text_to_be_scored_is_encoded_whole_with_the_given_vocabulary(encode):
    text = encode(b"cd ab\nef ab\n", WORDS)
    assert WORDS.decode(text.tokens.ids_at(np.arange(len(text.tokens)))) == "cd ab\n<unk> ab\n"
    assert text.bytes_per_token == 12 / 6
    assert text.fingerprint == encode(b"cd ab\nef ab\n", Bytes(), name="other.txt").fingerprint
    assert text.fingerprint != encode(b"cd ab\nef ac\n", WORDS).fingerprint
    # Only the requested one of several splits is encoded.
    assert len(encode(b"xxabab", Characters("ab"), cut=(1 / 3, 0.0, 2 / 3)).tokens) == 4


def test_bytes_are_counted_exactly_if_each_token_has_a_size(encode):
    text = encode("aaaaéé€".encode(), Characters("aé€"))
    assert (text.count_bytes(np.arange(4)), text.count_bytes(np.arange(4, 7))) == (4, 7)
    assert text.bytes_per_token == 11 / 7
    assert encode(b"ab cdcdcdcd\n", WORDS).count_bytes(np.array([0])) is None
    task = EvalText.from_store("recall", DataConfig("recall").open_text(), "test")
    assert task.count_bytes(np.arange(5)) is None


def test_text_of_any_length_is_encoded_in_constant_memory(encode):
    def peak(size: int) -> int:
        text = b"ab cd\n" * (size // 6)
        tracemalloc.start()
        encode(text, Bytes())
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(12_000_000) < 1.2 * peak(4_000_000) < 12_000_000


@pytest.mark.parametrize(
    ("total", "expected"), [(1000, "about 2 min until all is encoded\n"), (150, "")]
)
def test_after_the_first_part_of_a_long_text_its_minutes_are_announced_once(
    capsys, total, expected
):
    seconds = iter([0.0, 10.0])
    done = []
    advance = terminal.announce_minutes(done.append, total, 100, lambda: next(seconds))
    for n_byte in (60, 40, 50):
        advance(n_byte)
    assert done == [60, 40, 50]
    assert capsys.readouterr().err == expected
