"""A text that comes in parts: its tokens, which of them are final, and which part of it waits.

K tokens that are scored
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from ..data.vocab import Vocabulary
from ..errors import invalid_text, require


class TextToken(NamedTuple):
    """A token, and the characters of the whole text that it stands for, from start to stop."""

    id: int
    text: str
    start: int
    stop: int


class ScoredToken(NamedTuple):
    """A token of a `Session`, with its nats, and the characters that it stands for.

    `nats` is the negative natural logarithm of its probability, after all text before it; None of
    the first token of a session, which nothing predicts. `start` and `stop` count characters of
    all that was fed.

    >>> model, vocab = load("version_0")
    >>> first, second = Sessions(model, vocab).open().feed("to")
    >>> first
    ScoredToken(id=116, text='t', nats=None, start=0, stop=1)
    >>> 2 < second.nats < 9
    True
    """

    id: int
    text: str
    nats: float | None
    start: int
    stop: int


@dataclass(frozen=True)
class IncomingText:
    """The end of a text that comes in parts, as a value."""

    undecoded: bytes = b""
    """The first bytes of a character."""
    waiting: str = ""
    """Text whose tokens later text may change."""
    n_settled: int = 0
    """Characters before `waiting`, whose tokens are final."""
    has_begun: bool = False
    """True after the first tokens."""

    def add(self, part: str | bytes, vocab: Vocabulary) -> tuple[list[TextToken], IncomingText]:
        """Return the tokens that are final with a part of the text, and the rest."""
        text, undecoded = decode_part(self.undecoded, part)
        parts, waiting = vocab.split_settled(self.waiting + text)
        return replace(self, undecoded=undecoded, waiting=waiting).encode(parts, vocab)

    def flush(self, vocab: Vocabulary) -> tuple[list[TextToken], IncomingText]:
        """Return the tokens of what waits, as if a token ended here, and an empty rest."""
        n_byte = len(self.undecoded)
        require(not n_byte, "text", f"{n_byte} bytes of a character", "its other bytes first")
        return replace(self, waiting="").encode([self.waiting], vocab)

    def encode(
        self, parts: Sequence[str], vocab: Vocabulary
    ) -> tuple[list[TextToken], IncomingText]:
        """Return the tokens of parts that are final, and the text after them."""
        tokens = []
        n_settled = self.n_settled
        for part in filter(None, parts):
            spans = vocab.encode_spans(part, bool(tokens) or self.has_begun)
            for index, start, stop in zip(spans.ids_L.tolist(), *spans[1:], strict=True):
                places = n_settled + start, n_settled + stop
                tokens.append(TextToken(index, part[start:stop], *places))
            n_settled += len(part)
        has_begun = bool(tokens) or self.has_begun
        return tokens, replace(self, n_settled=n_settled, has_begun=has_begun)


def decode_part(undecoded: bytes, part: str | bytes) -> tuple[str, bytes]:
    """Return the text of a part, and the first bytes of a character that it ends within."""
    if isinstance(part, str):
        expected = "bytes, as the part before ends within a character"
        require(not undecoded, "text", "a text", expected)
        return part, b""
    require(isinstance(part, bytes | bytearray), "text", part, "a text or bytes")
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(undecoded + part)
    except UnicodeDecodeError as error:
        raise invalid_text("text", error) from error
    return text, decoder.getstate()[0]


def join_nats(tokens: Sequence[TextToken], nats_K: Tensor) -> list[ScoredToken]:
    """Return tokens with their nats, of which the first token of a text has none."""
    nats = nats_K[-len(tokens) :].tolist()
    nats = [None] * (len(tokens) - len(nats)) + nats
    return [
        ScoredToken(index, text, value, start, stop)
        for (index, text, start, stop), value in zip(tokens, nats, strict=True)
    ]


def join_words(tokens: Sequence[ScoredToken]) -> list[ScoredToken]:
    """Return words, each with the white space before it, with the sum of the nats of its tokens.

    The id of a word is that of its last token. The tokens must have the white space between words
    in their texts, as bytes, characters and subwords have it.

    >>> model, vocab = load("version_0")
    >>> tokens = Sessions(model, vocab).open().feed("to be  or")
    >>> [(word.text, word.start, word.stop) for word in join_words(tokens)]
    [('to', 0, 2), (' be', 2, 5), ('  or', 5, 9)]
    """
    words: list[ScoredToken] = []
    for token in tokens:
        is_new = not words or (token.text[:1].isspace() and words[-1].text.strip() != "")
        if is_new:
            words.append(token)
            continue
        last = words.pop()
        nats = (last.nats or 0.0) + (token.nats or 0.0)
        words.append(token._replace(text=last.text + token.text, nats=nats, start=last.start))
    return words
