"""Subwords by Hugging Face's `tokenizers`: trained on a text, or loaded."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import DataError, Settings, print_notice
from .base import (
    EncodedPiece,
    Vocabulary,
    decode_whole,
    encode_utf8,
    join_documents,
    split_between_words,
)

if TYPE_CHECKING:
    from ..text_files import FileSlice
    from .spans import Spans

PIECE_LEN = 100_000  # characters encoded in one piece
PIECES_AT_ONCE = 8  # pieces encoded in parallel
LONGEST_RUN = 1_000_000  # characters without white space after which a piece is cut anywhere
# Default size of a vocabulary by the largest bytes of a text, measured up to 70 MB.
N_TOKEN = {500_000: 1024, 3_000_000: 2048, math.inf: 4096}
SAMPLE = 1_000  # characters of a training sample; longer words take quadratic time
LONGEST_WORD = 64  # letters; longer ones are no words, but DNA, proteins or Chinese
LONG_WORD = re.compile(rf"[^\W\d_]{{{LONGEST_WORD}}}(?=[^\W\d_])")
TRAINED_HERE = 200_000  # bytes of text whose vocabulary takes less than a second
CHILD = f"from {__name__} import train_in_child; train_in_child()"
LARGEST = 1 << 24  # limit of ids, which may have gaps
REPLACED = "\ufffd"  # an incomplete character that further bytes may complete


@dataclass(frozen=True)
class SubwordOptions(Settings):
    """Options of trained subwords."""

    minima: ClassVar = {"n_token": 257, "train_bytes": 1}

    n_token: int | None = None
    """Size of the vocabulary; default 1024 for a text up to 0.5 MB, 2048 up to 3 MB, or else 4096.
    A short text gives a smaller one."""
    train_bytes: int = 20_000_000
    """Bytes of training text to train them on, sampled evenly."""

    def fill(self, n_byte: int) -> SubwordOptions:
        """Return the options for a text of this size."""
        default = next(n for largest, n in N_TOKEN.items() if n_byte <= largest)
        return replace(self, n_token=self.n_token or default)


@dataclass(frozen=True)
class Subwords(Vocabulary):
    """The tokens of a Hugging Face tokenizer."""

    tokenizer: str = field(repr=False)  # the text of its tokenizer.json
    unit = "subword"

    @staticmethod
    def from_tokenizer(tokenizer: dict[str, Any]) -> Subwords:
        """Use the tokens of a parsed tokenizer.json; DataError if there are none."""
        vocab = Subwords(json.dumps(tokenizer))
        if not vocab.n_token:
            raise DataError("vocabulary: the tokenizer has no tokens")
        if vocab.n_token > LARGEST:
            limit = f"expected ids below {LARGEST:,}"
            raise DataError(f"vocabulary: the tokenizer has an id {vocab.n_token - 1:,}; {limit}")
        if dropout := tokenizer["model"].get("dropout"):
            raise DataError(f"vocabulary: dropout: invalid {dropout}; expected null, or ids vary")
        return vocab

    @cached_property
    def n_token(self) -> int:
        # Not the number of tokens: some tokenizers skip ids.
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    @cached_property
    def unknown(self) -> int | None:
        model = json.loads(self.tokenizer)["model"]
        symbol = model.get("unk_token")
        return model.get("unk_id") if symbol is None else self._tokenizer.token_to_id(symbol)

    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        texts = split_between_words(split_by_length(document.texts(), PIECE_LEN), LONGEST_RUN)
        where = str(document.path)
        continues = document.continues
        while batch := list(islice(texts, PIECES_AT_ONCE)):
            yield from self._encode_pieces(batch, continues, where)
            continues = True

    def encode_batch(self, documents: Sequence[FileSlice]) -> EncodedPiece:
        texts = [*map(decode_whole, documents)]
        try:
            ids = self._encode_batch(texts, str(documents[0].path))
        except DataError:
            # One by one, so that the error names the document.
            return super().encode_batch(documents)
        return join_documents(np.concatenate(ids), [len(each) for each in ids])

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        # Refuse a lone surrogate here; tokenizers would report a wrong type.
        encode_utf8(text, where)
        [ids] = self._encode_batch([text], where)
        return ids

    def split_settled(self, text: str) -> tuple[list[str], str]:
        from .pieces import split_before_space

        return split_before_space(text, self._contexts)

    def encode_spans(self, text: str, continues: bool, where: str = "text") -> Spans:
        from .pieces import find_spans

        encode_utf8(text, where)
        context = (self._find_context(text) or "") if continues else ""
        # Not in a batch, whose threads take longer to start than a short text needs.
        encode = partial(self._tokenizer.encode, add_special_tokens=False)
        with _explain_tokenizer_errors(f"{where}: data.vocab's tokenizer cannot encode it"):
            return find_spans(encode, context, text)

    def decode(self, ids: Iterable[int]) -> str:
        # The byte-level decoder of `tokenizers` also takes the letters of added tokens for bytes.
        parts = []
        for text, same in groupby(map(int, ids), self._added.get):
            part = [*same]
            decode = self._tokenizer.decode
            parts.append(text * len(part) if text else decode(part, skip_special_tokens=False))
        return "".join(parts)

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        # A token's text may depend on the one before it, and a character may need several tokens.
        # tokenizers' DecodeStream raises if an invalid byte changes the text before it.
        before = []
        pending = []
        n_sent = 0
        for index in ids:
            pending.append(index)
            text = self.decode(before + pending)
            complete = text.rstrip(REPLACED)
            new = complete[n_sent:]
            yield new
            n_sent += len(new)
            if new and complete == text:
                before = pending
                pending = []
                n_sent = len(self.decode(before))
        yield self.decode(before + pending)[n_sent:]

    def token_bytes(self) -> np.ndarray | None:
        content = json.loads(self.tokenizer)
        split = content.get("pre_tokenizer") or {}
        # Only byte-level tokenizers that do not change the text have a size per token.
        is_plain = split.get("type") == "ByteLevel" and not split.get("add_prefix_space", True)
        if content.get("normalizer") or not is_plain:
            return None
        sizes = np.zeros(self.n_token, np.int64)
        for part, index in self._tokenizer.get_vocab(with_added_tokens=False).items():
            # One character stands for each byte.
            sizes[index] = len(part)
        for index, added in self._tokenizer.get_added_tokens_decoder().items():
            sizes[index] = len(added.content.encode())
        return sizes

    def list_marks(self, separator: int | None) -> list[int]:
        added = self._tokenizer.get_added_tokens_decoder().items()
        return [index for index, token in added if token.special or index == separator]

    def to_json(self) -> str:
        return json.dumps({"kind": "subwords", "tokenizer": json.loads(self.tokenizer)})

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        with _explain_tokenizer_errors("vocabulary: `tokenizers` cannot read it"):
            tokenizer = Tokenizer.from_str(self.tokenizer)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _added(self) -> dict[int, str]:
        """Added tokens that byte-level decoding would change."""
        decoder = json.loads(self.tokenizer).get("decoder") or {}
        if decoder.get("type") != "ByteLevel":
            return {}
        added = self._tokenizer.get_added_tokens_decoder().items()
        return {index: token.content for index, token in added if not token.content.isascii()}

    @property
    def is_cut_at_lines(self) -> bool:
        return self._contexts["line"] is not None

    @cached_property
    def _contexts(self) -> dict[str, str | None]:
        from .pieces import find_contexts

        encode = partial(self._encode_batch, where="data.vocab")
        return find_contexts(encode, self._tokenizer.get_vocab(with_added_tokens=False))

    def _encode_pieces(self, texts: list[str], continues: bool, where: str) -> list[np.ndarray]:
        """Return the ids of pieces of a text, each as in the whole text."""
        if len(texts) == 1 and not continues:
            return self._encode_batch(texts, where)
        from .pieces import encode_after

        contexts = [self._find_context(text) for text in texts[not continues :]]
        encoded = None
        if None not in contexts:
            encode = partial(self._encode_batch, where=where)
            encoded = encode_after(encode, [""] * (not continues) + contexts, texts)
        if encoded is None:
            limit = f"expected documents of at most {PIECE_LEN:,} characters"
            raise DataError(f"{where}: data.vocab's tokenizer joins words at white space; {limit}")
        return encoded

    def _find_context(self, text: str) -> str | None:
        from .pieces import LINE, name_beginning

        kind = name_beginning(text)
        # A long text without white space is cut anywhere.
        return self._contexts[kind] or ("" if kind == LINE else self._contexts[kind])

    def _encode_batch(self, texts: list[str], where: str) -> list[np.ndarray]:
        with _explain_tokenizer_errors(f"{where}: data.vocab's tokenizer cannot encode it"):
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, self.dtype) for encoding in encodings]


def split_by_length(texts: Iterable[str], size: int) -> Iterator[str]:
    """Yield the same text in pieces of at most `size` characters."""
    for text in texts:
        for start in range(0, len(text), size):
            yield text[start : start + size]


def train_subwords(kind: str, documents: Sequence[FileSlice], options: SubwordOptions) -> Subwords:
    """Train a tokenizer that knows every byte, of kind "bpe" or "unigram"."""
    n_byte = sum(document.n_byte for document in documents)
    options = options.fill(n_byte)
    sample = sample_text(documents, options.train_bytes)
    if n_byte <= TRAINED_HERE:
        return Subwords.from_tokenizer(train_tokenizer(kind, sample, options.n_token))
    print_notice(f"training a vocabulary of {options.n_token:,} subwords ({kind})")
    work = pickle.dumps((kind, list(sample), options.n_token))
    # In another process, which can be ended: native code would keep signals waiting. A process of
    # multiprocessing would run the user's script again, which may lack a guard.
    command = [sys.executable, "-P", "-c", CHILD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    imports = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, **pipes, env=os.environ | imports) as child:
        try:
            output, _ = child.communicate(work)
        finally:
            child.kill()
    if child.returncode:
        raise DataError(f"vocabulary: its training ended with exit code {child.returncode}")
    return Subwords.from_tokenizer(json.loads(output))


def train_in_child() -> None:
    """Train the tokenizer that the standard input describes, and print it."""
    print(json.dumps(train_tokenizer(*pickle.load(sys.stdin.buffer))))


def train_tokenizer(kind: str, texts: Iterable[str], n_token: int) -> dict[str, Any]:
    """Return the content of a new tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    is_bpe = kind == "bpe"
    tokenizer = Tokenizer(models.BPE() if is_bpe else models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = (trainers.BpeTrainer if is_bpe else trainers.UnigramTrainer)(
        vocab_size=n_token,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    # Time of the unigram trainer is quadratic in the length of a word.
    tokenizer.train_from_iterator(texts if is_bpe else cut_long_words(texts), trainer)
    content = json.loads(tokenizer.to_str())
    if not is_bpe:
        content["model"]["vocab"] = make_deterministic(content["model"]["vocab"])
    return content


def cut_long_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts, cut where a word is longer than LONGEST_WORD."""
    for text in texts:
        start = 0
        for part in LONG_WORD.finditer(text):
            yield text[start : part.end()]
            start = part.end()
        yield text[start:]


def sample_text(documents: Sequence[FileSlice], n_byte: int) -> Iterator[str]:
    """Yield at most `n_byte` bytes of a text, sampled evenly."""
    total = sum(document.n_byte for document in documents)
    n_read = 0
    n_taken = 0
    for document in documents:
        for piece in split_between_words(split_by_length(document.texts(), SAMPLE), SAMPLE):
            size = len(piece.encode())
            n_read += size
            if (n_taken + size) * total <= n_byte * n_read:
                n_taken += size
                yield piece


@contextmanager
def _explain_tokenizer_errors(prefix: str) -> Iterator[None]:
    """Raise a DataError for an error of `tokenizers`."""
    try:
        yield
    # Plain Exceptions, and BaseExceptions for panics of its Rust code, which also prints them;
    # anything else is a bug.
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{prefix} ({error})") from error


def make_deterministic(scores: list[tuple[str, float | None]]) -> list[tuple[str, float]]:
    """Return scores that are equal in all runs; the unigram trainer sums in varying order."""
    # Bytes missing in the text get the lowest score plus multiples of 0.0001, in arbitrary order;
    # without any text they get no score.
    lowest = min(score or 0.0 for _, score in scores)
    is_absent = [len(part) == 1 and (score or 0.0) < lowest + 0.0256 for part, score in scores]
    rounded = [
        (part, round(lowest if absent else score, 6))
        for (part, score), absent in zip(scores, is_absent, strict=True)
    ]
    return sorted(rounded, key=lambda pair: (-pair[1], pair[0]))
