"""Text into ids and back."""

import numpy as np
import pytest

from txl_lightning.data import DataError
from txl_lightning.data import corpora as corpora_room
from txl_lightning.data.corpora import Span
from txl_lightning.data.vocab import Bytes, Characters, fingerprint, load, named


def span(path, text: bytes) -> Span:
    path.write_bytes(text)
    return Span(path, 0, len(text))


@pytest.mark.parametrize("text", ["plain", "naïve ✓ 🙂", "line\r\nline\n"])
def test_text_comes_back(tmp_path, text):
    spans = [span(tmp_path / "a.txt", text.encode())]
    for vocab in (Bytes(), Characters.of(spans)):
        ids = np.concatenate(list(vocab.encode(spans)))
        assert vocab.decode(ids.tolist()) == text
        assert vocab.decode(vocab.encode_text(text).tolist()) == text
        assert ids.max() < vocab.n_token


def test_a_character_may_straddle_two_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora_room, "CHUNK", 1)
    spans = [span(tmp_path / "a.txt", "é✓🙂x".encode())]
    vocab = Characters.of(spans)
    assert vocab.alphabet == "xé✓🙂"
    assert np.concatenate(list(vocab.encode(spans))).tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("text", "offset"), [(b"ab\xffcd", 2), (b"\xc3\xa9\xc3(", 2), (b"abc\xe2\x9c", 3)]
)
def test_what_is_not_utf8_is_refused_with_file_and_offset(
    tmp_path, monkeypatch, chunk, text, offset
):
    monkeypatch.setattr(corpora_room, "CHUNK", chunk)
    with pytest.raises(DataError, match=rf"a\.txt: byte {offset} is not UTF-8"):
        Characters.of([span(tmp_path / "a.txt", text)])


def test_a_character_outside_the_vocabulary_is_refused():
    with pytest.raises(DataError, match=r"text: 'z' is not among the vocabulary's 3 characters"):
        Characters("abc").encode_text("abz")


def test_it_is_saved_as_text(tmp_path):
    for vocab in (Bytes(), Characters("abé")):
        path = tmp_path / "vocab.json"
        path.write_text(vocab.to_json())
        assert load(path.read_text()) == vocab == named(str(path), [])


def test_an_alphabet_out_of_order_is_refused():
    for alphabet in ("ba", "aab", ""):
        with pytest.raises(DataError, match="not in the order of its code points"):
            Characters(alphabet)


def test_another_json_is_not_a_vocabulary():
    with pytest.raises(DataError, match="is not one saved by this package"):
        load('{"alphabet": 3}')


def test_an_unknown_name_is_refused():
    with pytest.raises(
        DataError, match=r"data.vocab: 'wrds' is not a vocabulary; it must be bytes"
    ):
        named("wrds", [])


def test_only_the_same_vocabulary_has_the_same_fingerprint():
    names = {fingerprint(v) for v in (Bytes(), Characters("ab"), Characters("abc"))}
    assert len(names) == 3
    assert fingerprint(Characters("ab")) == fingerprint(Characters("ab"))
