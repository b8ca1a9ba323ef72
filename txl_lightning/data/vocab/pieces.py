"""What a tokenizer needs before a piece of a text, so that its ids are those in the whole text.

Some tokenizers change the beginning of a text (Metaspace, Llama's normalizer), and some join a line
end to the word after it. They are tried with words of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np

# How a piece begins.
SPACE = "space"
OTHER = "other white space"
LINE = "line"
# What is before such a piece, and its first characters.
BEGINNINGS = {
    SPACE: ("a", (" ", "  ", " \n")), OTHER: ("a", ("\n", "\t", "\n\n", "\r\n")),
    LINE: ("a\n", ("", "(")),
}  # fmt: skip
MARKS = re.compile("^[▁Ġ]|</w>$")  # of a token at the beginning or the end of a word
JOINED = re.compile(r"\S\s|\s\S")  # a token of a word and white space, not in letters for bytes
N_WORD = 50  # words that are tried

Encode = Callable[[Sequence[str]], list[np.ndarray]]


def find_contexts(encode: Encode, tokens: Iterable[str]) -> dict[str, str | None]:
    """Return what is encoded before a piece of each kind, and taken away; None if no text helps."""
    tokens = sorted(tokens)
    stems = (MARKS.sub("", token) for token in tokens)
    words = ["b", "1", *islice((stem for stem in stems if stem.isalpha()), N_WORD)]
    contexts = {
        kind: find_context(encode, before, [first + word for first in firsts for word in words])
        for kind, (before, firsts) in BEGINNINGS.items()
    }
    if any(map(JOINED.search, tokens)):
        contexts |= {OTHER: None, LINE: None}
    return contexts


def find_context(encode: Encode, before: str, texts: Sequence[str]) -> str | None:
    """Return nothing, or the text before, after which the texts have the ids of the whole."""
    [first] = encode([before])
    whole = encode([before + text for text in texts])
    for context in ("", before):
        parts = encode_after(encode, [context] * len(texts), texts)
        if parts is not None and all(
            np.array_equal(np.concatenate([first, part]), ids)
            for part, ids in zip(parts, whole, strict=True)
        ):
            return context
    return None


def encode_after(
    encode: Encode, contexts: Sequence[str], texts: Sequence[str]
) -> list[np.ndarray] | None:
    """Return the ids of texts, each after its context; None if an id belongs to both."""
    before = encode(contexts)
    whole = encode([*map("".join, zip(contexts, texts, strict=True))])
    pairs = [*zip(before, whole, strict=True)]
    if not all(np.array_equal(ids[: len(each)], each) for each, ids in pairs):
        return None
    return [ids[len(each) :] for each, ids in pairs]


def name_beginning(text: str) -> str:
    if text.startswith(" "):
        return SPACE
    return OTHER if text[0].isspace() else LINE
