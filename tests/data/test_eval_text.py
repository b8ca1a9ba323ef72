"""A text that is to be scored, and how many bytes its tokens stand for."""

import tarfile
import tracemalloc

import numpy as np
import pytest

from txl_lightning.data.config import DataConfig
from txl_lightning.data.documents import whole_file
from txl_lightning.data.eval_text import ALL_IS_TEST, of_store, with_vocabulary
from txl_lightning.data.store import Recipe, prepare_store
from txl_lightning.data.tasks import TaskStore
from txl_lightning.data.vocab import Bytes, Characters, WordOptions, Words
from txl_lightning.errors import DataError

WORDS = Words.from_list(["ab", "cd"], WordOptions())


@pytest.fixture
def measured(tmp_path):
    """A text of one's own, read with a vocabulary that was there before."""

    def read(text: bytes, vocab, name: str = "own.txt", split: str = "test", **options):
        path = tmp_path / name
        path.write_bytes(text)
        config = DataConfig(path=str(path), split=ALL_IS_TEST, data_dir=str(tmp_path), **options)
        return with_vocabulary(config, split, vocab, tmp_path)

    return read


def test_all_of_a_file_is_read_with_the_vocabulary_that_is_given(measured):
    text = measured(b"cd ab\nef ab\n", WORDS)
    ids = text.tokens.ids_at(np.arange(len(text.tokens)))
    assert WORDS.decode(ids) == "cd ab\n<unk> ab\n"
    assert text.bytes_per_token == 12 / 6


def test_what_the_vocabulary_lacks_is_refused(measured):
    with pytest.raises(DataError, match="'x' is not among the vocabulary's 2 characters"):
        measured(b"abxab", Characters("ab"))


def test_a_split_that_is_not_there_is_refused(measured):
    with pytest.raises(DataError, match=r"own\.txt: its val text is empty; give another split"):
        measured(b"abab", Bytes(), split="val")


def test_each_line_may_be_a_text_of_its_own(measured):
    text = measured(b"ab cd\ncd\nab\n", WORDS, document_unit="lines")
    assert text.tokens.doc_position(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 0, 1]


def test_names_in_a_tar_say_which_part_is_read(tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / f"{name}.txt").write_text(name)
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for name in ("train", "val", "test"):
            tar.add(tmp_path / f"{name}.txt", f"{name}.txt")
    config = DataConfig(path=str(tmp_path / "all.tar"), split=ALL_IS_TEST, data_dir=str(tmp_path))
    text = with_vocabulary(config, "val", Bytes(), tmp_path)
    assert bytes(text.tokens.ids_at(np.arange(3)).tolist()) == b"val"


def test_a_text_of_any_length_is_encoded_in_constant_memory(measured, tmp_path):
    def peak(size: int) -> int:
        (tmp_path / "large.txt").write_bytes(b"ab cd\n" * (size // 6))
        config = DataConfig(path=str(tmp_path / "large.txt"), split=ALL_IS_TEST)
        tracemalloc.start()
        with_vocabulary(config, "test", Bytes(), tmp_path)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(12_000_000) < 1.2 * peak(4_000_000) < 12_000_000


def test_the_bytes_of_a_part_are_counted_where_each_tokens_are_known(measured):
    text = measured("aaaaéé€".encode(), Characters("aé€"))
    assert text.n_byte(np.arange(4)) == 4
    assert text.n_byte(np.arange(4, 7)) == 7
    assert text.bytes_per_token == 11 / 7


def test_the_bytes_of_words_are_those_of_average_ones(measured):
    assert measured(b"ab cdcdcdcd\n", WORDS).n_byte(np.array([0])) == 12 / 3


def test_symbols_that_begin_a_text_stand_for_none_of_its_bytes(measured):
    words = Words.from_list(["ab"], WordOptions(line_end="double_eos"))
    text = measured(b"ab ab\nab\n", words, document_unit="lines")
    assert len(text.tokens) == 7
    assert text.bytes_per_token == 9 / 5


def test_the_same_text_has_the_same_name(measured):
    one, two = measured(b"abab", Bytes()), measured(b"abab", Bytes(), name="other.txt")
    assert one.fingerprint == two.fingerprint != measured(b"abba", Bytes()).fingerprint


def test_a_prepared_text_is_read_as_it_is(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abcabc")
    spans = whole_file(tmp_path / "a.txt")
    store = prepare_store(Recipe({"train": spans, "val": spans, "test": spans}), tmp_path)
    text = of_store("a", store, "val")
    assert bytes(text.tokens.ids_at(np.arange(6)).tolist()) == b"abcabc"
    assert (text.n_byte(np.arange(5)), text.fingerprint) == (5, store.fingerprint)


def test_symbols_of_a_task_stand_for_no_bytes():
    text = of_store("recall", TaskStore("recall", DataConfig().task), "test")
    assert text.n_byte(np.arange(5)) is None
