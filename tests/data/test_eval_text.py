"""A text that is to be scored, and how many bytes its tokens stand for."""

import tarfile
import tracemalloc

import numpy as np
import pytest

from txl_lightning.data.config import DataConfig
from txl_lightning.data.documents import whole_file
from txl_lightning.data.store import EvalText, Recipe, prepare_store
from txl_lightning.data.tasks import TaskStore
from txl_lightning.data.vocab import Bytes, Characters, WordOptions, Words
from txl_lightning.errors import DataError

ALL_IS_TEST = (0.0, 0.0, 1.0)
WORDS = Words.from_list(["ab", "cd"], WordOptions())


@pytest.fixture
def encode(tmp_path):
    """Encode a user's own text with a vocabulary that was there before."""

    def run(text: bytes, vocab, name: str = "own.txt", split: str = "test", **options) -> EvalText:
        path = tmp_path / name
        path.write_bytes(text)
        config = DataConfig(path=str(path), split=ALL_IS_TEST, data_dir=str(tmp_path), **options)
        return config.encode_split(split, vocab, tmp_path)

    return run


def test_whole_file_is_encoded_with_the_given_vocabulary(encode):
    text = encode(b"cd ab\nef ab\n", WORDS)
    assert WORDS.decode(text.tokens.ids_at(np.arange(len(text.tokens)))) == "cd ab\n<unk> ab\n"
    assert text.bytes_per_token == 12 / 6


def test_text_is_refused_where_the_vocabulary_lacks_a_character_or_the_split_is_empty(encode):
    with pytest.raises(DataError, match="'x' is not among the vocabulary's 2 characters"):
        encode(b"abxab", Characters("ab"))
    with pytest.raises(DataError, match=r"own\.txt: its val text is empty; give another split"):
        encode(b"abab", Bytes(), split="val")


def test_split_is_named_by_the_files_of_a_tar(tmp_path):
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for name in ("train", "val", "test"):
            (tmp_path / f"{name}.txt").write_text(name)
            tar.add(tmp_path / f"{name}.txt", f"{name}.txt")
    config = DataConfig(path=str(tmp_path / "all.tar"), split=ALL_IS_TEST, data_dir=str(tmp_path))
    text = config.encode_split("val", Bytes(), tmp_path)
    assert bytes(text.tokens.ids_at(np.arange(3)).tolist()) == b"val"


def test_text_of_any_length_is_encoded_in_constant_memory(encode, tmp_path):
    def peak(size: int) -> int:
        text = b"ab cd\n" * (size // 6)
        tracemalloc.start()
        encode(text, Bytes())
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(12_000_000) < 1.2 * peak(4_000_000) < 12_000_000


def test_bytes_are_counted_exactly_where_each_tokens_are_known(encode):
    text = encode("aaaaéé€".encode(), Characters("aé€"))
    assert (text.count_bytes(np.arange(4)), text.count_bytes(np.arange(4, 7))) == (4, 7)
    assert text.bytes_per_token == 11 / 7
    assert encode(b"ab cdcdcdcd\n", WORDS).count_bytes(np.array([0])) == 12 / 3


def test_lines_may_be_documents_whose_start_symbols_stand_for_no_bytes(encode):
    words = Words.from_list(["ab"], WordOptions(line_end="double_eos"))
    text = encode(b"ab ab\nab\n", words, document_unit="lines")
    assert text.tokens.doc_position(np.arange(7)).tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert (len(text.tokens), text.bytes_per_token) == (7, 9 / 5)


def test_fingerprint_depends_on_the_text_alone(encode):
    one, two = encode(b"abab", Bytes()), encode(b"abab", Bytes(), name="other.txt")
    assert one.fingerprint == two.fingerprint != encode(b"abba", Bytes()).fingerprint


def test_eval_text_of_a_store_is_its_split_and_of_a_task_has_no_bytes(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abcabc")
    slices = whole_file(tmp_path / "a.txt")
    store = prepare_store(Recipe(dict.fromkeys(("train", "val", "test"), slices)), tmp_path)
    text = EvalText.from_store("a", store, "val")
    assert bytes(text.tokens.ids_at(np.arange(6)).tolist()) == b"abcabc"
    assert (text.count_bytes(np.arange(5)), text.fingerprint) == (5, store.fingerprint)
    text = EvalText.from_store("recall", TaskStore("recall", DataConfig().task), "test")
    assert text.count_bytes(np.arange(5)) is None
