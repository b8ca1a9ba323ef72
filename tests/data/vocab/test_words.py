"""Words, compared with the original's line-by-line reader."""

import io
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.vocab import WordOptions, Words, load_vocabulary
from txl_lightning.errors import DataError

TEXTS = st.text(st.sampled_from("abAΣσİ \n\r\t\x0b\x1c\x85\u2028\u3000.🙂"), max_size=60)
LINE_ENDS = st.sampled_from(["eos", "double_eos", "none"])


def split_by_line(text: str, options: WordOptions) -> list[str]:
    """Return the symbols of a text by the slow rule of the original."""
    symbols = []
    for line in io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"):
        line = line.strip().lower() if options.lower_case else line.strip()
        start = {"double_eos": ["<S>"]}.get(options.line_end, [])
        end = {"eos": ["<eos>"], "none": []}.get(options.line_end, start)
        symbols += [*start, *line.split(), *end]
    return symbols


def encoded(vocab: Words, document) -> list[str]:
    return [vocab.words[index] for index in np.concatenate(list(vocab.encode(document)))]


@given(text=TEXTS, size=st.integers(1, 20), line_end=LINE_ENDS, lower_case=st.booleans())
def test_words_are_those_of_the_lines_read_one_by_one(document, text, size, line_end, lower_case):
    options = WordOptions(line_end=line_end, lower_case=lower_case, unknown="error")
    vocab = Words.from_documents([document(text, size)], options)
    truth = split_by_line(text, options)
    assert encoded(vocab, document(text, size)) == truth
    counter = Counter(word for word in truth if word not in ("<eos>", "<S>"))
    first = {"eos": ["<eos>"], "double_eos": ["<S>"], "none": []}[line_end]
    assert list(vocab.words) == [*first, *(word for word, _ in counter.most_common())]
    assert load_vocabulary(vocab.to_json()) == vocab


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_freq": 2}, "<eos> a B <unk>"),
        ({"max_size": 1}, "<eos> a <unk>"),
        ({"max_size": 9}, "<eos> a B b <pad> <unk>"),
        ({"max_size": 2, "special": ("a", "<eos>")}, "<eos> a B b <unk>"),
        ({"lower_case": True}, "<eos> a b <pad> <unk>"),
        ({"line_end": "double_eos"}, "<S> a B b <pad> <unk>"),
        ({"unknown": "error"}, "<eos> a B b <pad>"),
    ],
)
def test_words_are_chosen_by_count(document, options, expected):
    texts = [document("a B a b B"), document("<pad> a")]
    vocab = Words.from_documents(texts, WordOptions(**options))
    assert vocab.words == tuple(expected.split())
    assert load_vocabulary(vocab.to_json()) == vocab


def test_unseen_word_becomes_the_symbol_that_the_vocabulary_has_or_is_refused(document):
    for words, symbol in (("a", "<unk>"), ("a <unk> b", "<unk>"), ("a <UNK>", "<UNK>")):
        vocab = Words.from_list(words.split(), WordOptions())
        assert encoded(vocab, document("a z")) == ["a", symbol, "<eos>"]
        assert vocab.words.count(symbol) == 1
    vocab = Words.from_list(["a", "é"], WordOptions(unknown="error", lower_case=True))
    with pytest.raises(DataError, match=r"^a\.txt: 'zed' is not among the vocabulary's 3 words"):
        encoded(vocab, document("é\r\n a É \nZed zed", 5))
    with pytest.raises(DataError, match=r"^prompt: 'zed' is not .* data\.words\.unknown unk$"):
        vocab.encode_text("a zed", "prompt")


@pytest.mark.parametrize(
    ("line_end", "prompt", "expected"),
    [
        ("eos", "A\r\nb", "a <eos> b"),
        ("eos", "a\n", "a <eos>"),
        ("double_eos", "a", "<S> a"),
        ("double_eos", "a\n", "<S> a <S> <S>"),
        ("double_eos", "", "<S>"),
        ("none", "a\nb", "a b"),
    ],
)
def test_last_line_of_a_prompt_may_continue(line_end, prompt, expected):
    vocab = Words.from_list(["a", "b"], WordOptions(line_end=line_end, lower_case=True))
    assert [vocab.words[index] for index in vocab.encode_text(prompt)] == expected.split()


@given(lines=st.lists(st.lists(st.sampled_from(["a", "b", "x<eos>y"]))), line_end=LINE_ENDS)
def test_encoded_lines_are_decoded_to_themselves(document, lines, line_end):
    vocab = Words.from_list(["a", "b", "x<eos>y"], WordOptions(line_end=line_end))
    text = "".join(" ".join(line) + "\n" for line in lines)
    ids = np.concatenate(list(vocab.encode(document(text))))
    assert vocab.decode(ids) == (" ".join(text.split()) if line_end == "none" else text)


@pytest.mark.parametrize(
    ("symbols", "text"),
    [
        ("a <S> <S> b", "a\nb"),
        ("<S> <S> b", "\nb"),
        ("b <S>", "b\n"),
        ("<S> a <S> <S> <S> <S> b", "a\n\nb"),
    ],
)
def test_decoded_text_may_begin_inside_a_line(symbols, text):
    vocab = Words.from_list(["<S>", "a", "b"], WordOptions(line_end="double_eos"))
    assert vocab.decode([vocab.words.index(symbol) for symbol in symbols.split()]) == text
