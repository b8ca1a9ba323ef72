"""A text that comes in parts: which of its tokens are final, and which part of it waits."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..data.vocab import Vocabulary
from ..errors import invalid_text, require


class TextToken(NamedTuple):
    """A token, and the characters of the whole text that it stands for, from start to stop."""

    id: int
    text: str
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
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(undecoded + part)
    except UnicodeDecodeError as error:
        raise invalid_text("text", error) from error
    return text, decoder.getstate()[0]
