"""Common properties of vocabularies: names, files, decoding by id, byte counts, text in pieces."""

import json
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from txl_lightning.data.vocab import BUILT_IN, SubwordOptions, build_vocabulary, load_vocabulary
from txl_lightning.data.vocab.base import Bytes, Characters, split_between_words
from txl_lightning.data.vocab.subwords import Subwords, split_by_length, train_subwords
from txl_lightning.data.vocab.words import WordOptions, Words
from txl_lightning.errors import DataError

TEXT = "the king's naïve 🙂 cat; ☃ hat\n\n" * 9
SPACED = st.text(st.sampled_from("ab é\n\t\x1c\x85\u3000"), max_size=40)
WORDS = ("a", "b", "<S>", "<eos>")
NOT_OURS = "is not one saved by this package"
UNKNOWN_OPTION = b'{"kind": "words", "words": [], "options": {"special": [], "n": 1}}'


PARTS = "it has parts of words, without their tokenizer; give its tokenizer.json"


def saved_words(words: list, **options) -> bytes:
    options = {"special": []} | options
    return json.dumps({"kind": "words", "words": words, "options": options}).encode()


def tokenizer_json(**model) -> bytes:
    content = json.loads(Tokenizer(models.BPE({"a": 0}, [])).to_str())
    return json.dumps(content | {"model": content["model"] | model}).encode()


@cache
def sentence_piece() -> Subwords:
    """Words that begin with a mark, and bytes for all else, as in Llama's tokenizer."""
    parts = [f"<0x{byte:02X}>" for byte in range(256)]
    ids = {part: index for index, part in enumerate([*parts, "▁", "▁the", "▁cat", "s", "é"])}
    tokenizer = Tokenizer(models.BPE(ids, [], byte_fallback=True))
    strip = decoders.Strip(" ", 1, 0)
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    tokenizer.decoder = decoders.Sequence(chain)
    return Subwords.from_tokenizer(json.loads(tokenizer.to_str()))


KINDS = {
    "bytes": lambda _: Bytes(),
    "characters": lambda text: Characters.from_documents([text]),
    "eos": lambda _: Words(WORDS, WordOptions(line_end="eos")),
    "double_eos": lambda _: Words(WORDS, WordOptions(line_end="double_eos")),
    "none": lambda _: Words(WORDS, WordOptions(line_end="none")),
    "bpe": lambda text: train_subwords("bpe", [text], SubwordOptions(300)),
    "unigram": lambda text: train_subwords("unigram", [text], SubwordOptions(300)),
}


@pytest.fixture(scope="module", params=KINDS)
def vocab(request, document):
    return KINDS[request.param](document(TEXT))


@given(data=st.data())
def test_stream_of_any_ids_joined_is_their_text(vocab, data):
    ids = data.draw(st.lists(st.integers(0, min(vocab.n_token, 300) - 1), max_size=25))
    assert "".join(vocab.decode_stream(ids)) == vocab.decode(ids)


@given(st.lists(st.sampled_from([[256], [257], [258], [259], [0xC3, 0xA9], [*"🙂".encode()]])))
def test_decode_stream_omits_only_one_space_at_the_beginning(parts):
    ids = [index for part in parts for index in part]
    assert "".join(sentence_piece().decode_stream(ids)) == sentence_piece().decode(ids)


@pytest.mark.parametrize(
    ("ids", "pieces"),
    [
        # With one invalid byte, decode shows none of its neighbors.
        ([*b"a\xff", 259], ["a", "", "\ufffds", ""]),
        (
            [257, *"é".encode(), *"☃".encode(), 258, *"🙂".encode(), 259],
            ["the", "", "é", "", "", "☃", " cat", "", "", "", "🙂", "s", ""],
        ),
    ],
)
def test_stream_shows_a_character_with_its_last_byte_and_retracts_none(ids, pieces):
    assert list(sentence_piece().decode_stream(ids)) == pieces


def test_text_of_an_id_is_yielded_before_the_next_id_is_read(vocab):
    n_read = []
    ids = (n_read.append(index) or index for index in (0, 1, 2, 1))
    for number, _ in enumerate(islice(vocab.decode_stream(ids), 4), 1):
        assert len(n_read) == number


def test_bytes_of_tokens_add_up_to_the_text(vocab, document):
    if vocab.unit == "word":
        # White space between words is not kept.
        assert vocab.token_bytes() is None
    else:
        ids = np.concatenate(list(vocab.encode(document(TEXT, 7))))
        assert vocab.token_bytes()[ids].sum() == len(TEXT.encode())


def test_only_equal_vocabularies_share_a_fingerprint():
    words = Words(("a",), WordOptions())
    others = [replace(words, words=("b",)), replace(words, options=WordOptions(lower_case=True))]
    vocabularies = [Bytes(), Characters("ab"), Characters("abc"), words, *others]
    assert len({vocab.fingerprint for vocab in vocabularies}) == len(vocabularies)
    assert Characters("ab").fingerprint == Characters("ab").fingerprint


@given(text=st.text(min_size=1), size=st.integers(1, 9))
def test_encoded_bytes_and_characters_are_decoded_to_the_text(document, text, size):
    for vocab in (Bytes(), Characters.from_documents([document(text, size)])):
        ids = np.concatenate(list(vocab.encode(document(text, size))))
        assert vocab.decode(ids.tolist()) == text
        assert vocab.decode(vocab.encode_text(text).tolist()) == text
        assert ids.max() < vocab.n_token


def test_alphabet_has_the_characters_of_all_documents_in_order_and_no_other(document):
    vocab = Characters.from_documents([document("b🙂a"), document("éa")])
    assert vocab.alphabet == "abé🙂"
    with pytest.raises(DataError, match=r"text: 'z' is not among the vocabulary's 4 characters"):
        vocab.encode_text("abz")
    with pytest.raises(DataError, match=r"a\.txt: 'z' is not among the vocabulary's 4"):
        list(vocab.encode(document("abz")))
    for alphabet in ("ba", "aab", ""):
        with pytest.raises(DataError, match="not sorted by code point"):
            Characters(alphabet)


@pytest.mark.parametrize(
    ("text", "offset", "size"),
    [
        (b"ab\xffcd", 2, 1 << 20),
        (b"\xc3\xa9\xc3(", 2, 1 << 20),
        *((b"abc\xe2\x9c", 3, size) for size in (1, 3, 1 << 20)),
    ],
)
def test_bytes_that_are_not_utf8_are_refused_with_file_and_offset(document, text, offset, size):
    with pytest.raises(DataError, match=rf"a\.txt: byte {100 + offset} is not UTF-8 text; if"):
        list(document(text, size, start=100).texts())


@given(text=SPACED, size=st.integers(1, 9))
def test_pieces_end_with_a_word_and_continue_with_white_space(text, size):
    pieces = list(split_between_words(split_by_length([text], size)))
    assert "".join(pieces) == text
    for left, right in pairwise(pieces):
        assert not left[-1].isspace()
        assert right[0].isspace()
        assert right[0] != "\x1c"


@pytest.mark.parametrize(
    ("texts", "longest", "pieces"),
    [
        (["one two!\n", "three"], 99, ["one", " two!\nthree"]),
        (["one\ntwo!\n", "three"], 99, ["one\ntwo!", "\nthree"]),
        (["ab", "cd", "e f"], 99, ["abcde f"]),
        (["ab", "cd", "e f"], 4, ["abcd", "e f"]),
        (["  ", "  ", "  "], 4, ["    ", "  "]),
    ],
)
def test_piece_ends_at_a_space_or_line_end_or_where_it_is_too_long(texts, longest, pieces):
    assert list(split_between_words(texts, longest)) == pieces


def test_document_is_never_in_memory_as_a_whole(document):
    n_read = []
    watched = (n_read.append(text) or text for text in document("ab " * 30, 3).texts())
    next(split_between_words(watched))
    assert len(n_read) <= 2


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (WordOptions, {"min_freq": -1}, "min_freq: invalid -1; expected at least 0"),
        (WordOptions, {"max_size": 0}, "max_size: invalid 0; expected at least 1"),
        (WordOptions, {"special": ("a b",)}, "special: invalid 'a b'; expected no white space"),
        (WordOptions, {"special": ("",)}, "special: invalid ''"),
        (SubwordOptions, {"n_token": 256}, "n_token: invalid 256; expected at least 257"),
        (SubwordOptions, {"train_bytes": 0}, "train_bytes: invalid 0; expected at least 1"),
    ],
)
def test_invalid_options_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        kind(**options)


@pytest.fixture
def build(document):
    """Build the named vocabulary for a short text."""

    def make(name, options=None):
        text = document("the cat\nthe hat\n")
        options = options or WordOptions()
        return build_vocabulary(str(name), [text], options, SubwordOptions(260))

    return make


@pytest.mark.parametrize(
    ("name", "unit", "n_token"),
    [
        ("bytes", "byte", 256),
        ("characters", "character", 7),
        ("words", "word", 5),
        ("bpe", "subword", 260),
        ("unigram", "subword", 256),
    ],
)
def test_vocabulary_is_built_by_its_name_and_loaded_by_its_path(
    build, tmp_path, name, unit, n_token
):
    vocab = build(name)
    path = tmp_path / "any.name"
    path.write_text(vocab.to_json())
    assert name in BUILT_IN
    assert (vocab.unit, vocab.n_token) == (unit, n_token)
    assert load_vocabulary(path.read_text()) == vocab == build(path)
    assert build(path).fingerprint == vocab.fingerprint
    if unit == "subword":
        path.write_text(vocab.tokenizer)
        assert build(path) == vocab


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the 99\r\n\r\n cat\t3 x\nthe\n<S>", ("the", "cat", "<S>", "<unk>")),
        ('{ 12\n} 9\n"a": 3\n<UNK> 1\n', ("{", "}", '"a":', "<UNK>", "<S>")),
        ("7", ("7", "<S>", "<unk>")),
        # A byte order mark.
        ("\ufeffthe\ncat\n", ("the", "cat", "<S>", "<unk>")),
        ('\ufeff["a", "b"]', ("a", "b", "<S>", "<unk>")),
        ('["a", "b"]', ("a", "b", "<S>", "<unk>")),
        ('{"b": 1, "a": 0}', ("a", "b", "<S>", "<unk>")),
    ],
)
def test_list_of_words_gives_the_ids_by_its_order(build, tmp_path, text, words):
    path = tmp_path / "words.txt"
    path.write_bytes(text.encode())
    options = WordOptions(line_end="double_eos")
    assert build(path, options) == Words(words, options)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("none.txt", None, "No such file or directory"),
        ("empty.txt", b" \n", "it has no words"),
        ("latin.txt", b"caf\xe9", "'utf-8' codec can't decode"),
        ("lfs.txt", b"version https://git-lfs.github.com/spec/v1\nsize 9\n", "a Git LFS pointer"),
        ("cut.json", b'{"kind": "wor', NOT_OURS),
        ("number.json", b"7", NOT_OURS),
        ("other.txt", b'{"a": "b"}', NOT_OURS),
        ("option.txt", UNKNOWN_OPTION, NOT_OURS),
        ("number.txt", b'["a", 1]', "expected words without white space"),
        ("ids.txt", b'{"a": 0, "b": 2}', "its ids do not go from 0"),
        ("model.json", b'{"model": {"type": "none"}}', "`tokenizers` cannot read it"),
        ("no_token.json", Tokenizer(models.BPE()).to_str().encode(), "has no tokens"),
        ("unknown.json", saved_words(["a", "b"]), NOT_OURS),
        ("end.json", saved_words(["<eos>", "<unk>"], line_end="x"), NOT_OURS),
        ("special.json", saved_words(["<eos>", "<unk>"], special=[5]), NOT_OURS),
        ("twice.json", saved_words(["<eos>", "<unk>", "a", "a"]), NOT_OURS),
        ("numbers.json", saved_words([1, 2, 3]), "expected words without white space"),
        ("deep.json", b"[" * 100_000, NOT_OURS),
        ("deep_model.json", b'{"model": ' + b'{"a": ' * 900 + b"1" + b"}" * 901, "annot read it"),
        ("panic.json", tokenizer_json(merges=["a a"]), "annot read it"),
        ("half.json", saved_words(["<eos>", "<unk>", "\ud800"]), NOT_OURS),
        ("half.txt", b'{"kind": "characters", "alphabet": "\\ud800"}', NOT_OURS),
        ("random.json", tokenizer_json(dropout=0.5), "dropout: invalid 0.5; expected null, or"),
        ("gpt2.json", json.dumps({"!": 0, "the": 1, "\u0120the": 2}).encode(), PARTS),
        ("llama.json", json.dumps(["<unk>", "\u2581the", "s"]).encode(), PARTS),
        ("bert.txt", b"[PAD]\n[UNK]\nthe\n##s\n", PARTS),
        ("clip.json", b'["!", "the</w>", "th"]', PARTS),
        ("codes.txt", b"the 90\nth@@ 50\n", PARTS),
        ("merges.txt", "#version: 0.2\n\u0120 t\nh e\n".encode(), PARTS),
        ("cl100k.tiktoken", b"IQ== 0\nIg== 1\ndGhl 2\n", PARTS),
        ("id.json", tokenizer_json(vocab={"a": 4_000_000_000}), "has an id 4,000,000,000; exp"),
    ],
)
def test_file_that_is_no_vocabulary_is_refused_with_the_reason(
    build, tmp_path, file, text, reason, capfd
):
    path = tmp_path / file
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(DataError) as caught:
        build(path)
    message = str(caught.value)
    assert message.startswith(f"data.vocab: invalid {path} (")
    assert reason in message
    assert "expected bytes, characters, words, bpe, unigram, or a file: a saved" in message
    assert "\n" not in message
    # Rust prints a panic of its own.
    assert (capfd.readouterr().err == "") is (file != "panic.json")


@pytest.mark.parametrize(
    "words", ["that this four", "@-@ the ## #1 == =", "\u2581 \u0120 a", "\u0120x " + "a " * 200]
)
def test_words_that_only_resemble_parts_of_words_are_words(build, tmp_path, words):
    listed = [*dict.fromkeys(words.split()), *(f"word{n}" for n in range(200 * ("x" in words)))]
    (tmp_path / "words.txt").write_text("\n".join(listed))
    assert isinstance(build(tmp_path / "words.txt"), Words)
