"""Text that a tokenizer needs before a piece, so that its ids are those in the whole text.

Some tokenizers change the beginning of a text (Metaspace, Llama's normalizer), and some join a line
end to the word after it. They are tried with words of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ...errors import DataError, require
from .spans import LONGEST_WAIT, Spans, cut_runs, place_offsets

# How a piece begins.
SPACE = "space"
OTHER = "other white space"
PUNCTUATED = "other white space after punctuation"
LINE = "line"
# What is before such a piece, and its first characters.
BEGINNINGS = {
    SPACE: ("a", (" ", "  ", " \n")), OTHER: ("a", ("\n", "\t", "\n\n", "\r\n")),
    LINE: ("a\n", ("", "(")),
}  # fmt: skip
MARKS = re.compile("^[▁Ġ]|</w>$")  # of a token at the beginning or the end of a word
# White space of tokenizers, which is not Python's: without the separators 1c to 1f.
RUN = re.compile(r"[^\S\x1c-\x1f]+|[\S\x1c-\x1f]+")
SPACE_AFTER = re.compile(r"(?<=[\S\x1c-\x1f]) ")
ANY_AFTER = re.compile(r"(?<=[\S\x1c-\x1f])[^\S\x1c-\x1f]")
JOINED_BYTES = re.compile(r"[^ĊčĉĠ][Ċčĉ]")  # of something and a line end or a tab, as bytes
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
    contexts[PUNCTUATED] = None if any(map(JOINED_BYTES.search, tokens)) else ""
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


def split_before_space(text: str, contexts: Mapping[str, str | None]) -> tuple[list[str], str]:
    """Return a text in parts up to the last word that is over, and what may go on.

    White space is no part's end, because a tokenizer may join it to more of it, or to a word.
    """
    *parts, last = cut_runs(RUN, text)
    gap = SPACE_AFTER if None in (contexts[OTHER], contexts[PUNCTUATED]) else ANY_AFTER
    end = max((match.start() for match in gap.finditer(last)), default=0)
    joins = contexts[SPACE] is None or len(last) - end > 2 * LONGEST_WAIT
    if joins:
        raise DataError("text: data.vocab's tokenizer joins words; expected one that splits them")
    return [*parts, last[:end]], last[end:]


def find_spans(encode: Callable[[str], Any], context: str, text: str) -> Spans:
    """Return the ids of a text after a context, and the characters that each stands for."""
    before = encode(context)
    whole = encode(context + text)
    n_before = len(before)
    require(before.ids == whole.ids[:n_before], "text", text[:40], "no part of a word")
    offsets = [[at - len(context) for at in span] for span in whole.offsets[n_before:]]
    return place_offsets(np.array(whole.ids[n_before:], np.int64), offsets)


def name_beginning(text: str) -> str:
    if text.startswith(" "):
        return SPACE
    return OTHER if text[0].isspace() else LINE
