"""Prompts as text or ids, and continuations in the same form, whole or token by token."""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.vocab import Vocabulary
from ..errors import DataError, require

Prompt = str | Tensor | np.ndarray | Sequence[int]


def is_one(prompt: Any) -> bool:
    """Return True for one prompt, False for a list of prompts."""
    is_list = isinstance(prompt, list | tuple)
    return not is_list or (len(prompt) > 0 and isinstance(prompt[0], int | np.integer))


def require_several(key: str, texts: Any) -> None:
    """Refuse one text, or its ids, where several are expected: it would be cut into tokens."""
    is_text = isinstance(texts, str | bytes)
    is_ids = isinstance(texts, Tensor | np.ndarray) and texts.ndim == 1 and texts.dtype != object
    is_ids = is_ids or (isinstance(texts, list | tuple) and is_one(texts))
    require(not is_text and not is_ids, key, "one text or ids", "a list of texts, or of ids")


def encode_prompt(prompt: Prompt, vocab: Vocabulary | None = None) -> Tensor:
    """Return the ids of a prompt: prompt_L, int64, on the CPU unless it is a tensor elsewhere.

    >>> model, vocab = load("version_0")
    >>> encode_prompt("to be", vocab), encode_prompt([3, 1, 4])
    (tensor([116, 111,  32,  98, 101]), tensor([3, 1, 4]))

    Raises:
        ValueError: a text without a vocabulary, or ids that are not in one dimension.
        DataError: text that the vocabulary does not know.
    """
    if isinstance(prompt, str):
        expected = "the vocabulary of the text, as load returns it beside the model"
        require(vocab is not None, "vocab", vocab, expected)
        prompt = vocab.encode_text(prompt, where="prompt").astype("int64")
    try:
        ids_L = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError):
        ids_L = torch.zeros(())
    is_ids = ids_L.dim() == 1 and (not ids_L.is_floating_point() or not len(ids_L))
    require(is_ids, "prompt", prompt, "a text, or ids in one dimension; or a list of such")
    return ids_L.long()


def encode_start(vocab: Vocabulary) -> Tensor:
    """Return the ids of a start without a prompt: a line end or a space, if the vocabulary knows
    one; else its first token."""
    for text in ("\n", " "):
        with suppress(DataError):
            ids = vocab.encode_text(text).astype("int64")
            if len(ids) and ids[-1] != vocab.unknown:
                return torch.from_numpy(ids)
    first = 1 if vocab.unknown == 0 and vocab.n_token > 1 else 0
    return torch.tensor([first])


def echo_prompt(prompt: Any, decoded: str) -> str:
    """Return a text as given, and as decoded if it is None or ids.

    Decoding may change white space and unknown words. What it drops or withholds at the end would
    be printed twice, before and with the next token.
    """
    if not isinstance(prompt, str):
        return decoded
    is_whole = prompt.endswith(decoded[-1:])
    return prompt if is_whole else prompt.rstrip().rstrip("\ufffd")


def decode_as(prompt: Prompt, prompt_L: Tensor, new_L: Tensor, vocab: Vocabulary | None) -> Any:
    """Return a continuation in the form of its prompt."""
    if isinstance(prompt, Tensor):
        # A copy, because the user cannot modify a tensor made under inference_mode.
        return new_L.clone()
    if not isinstance(prompt, str):
        return new_L.tolist()
    # The space before a word depends on the previous word.
    text = StreamingDetokenizer(vocab, prompt_L.tolist())
    return "".join([*map(text.push, new_L.tolist()), text.flush()])


class StreamingDetokenizer:
    """The text of one continuation, token by token, up to the first stop string.

    Args:
        vocab: vocabulary of the ids.
        prefix: ids before the continuation; `prefix_pieces` has the text of each.
        stop: strings that end the text. Each may begin and end inside tokens.
    """

    def __init__(
        self, vocab: Vocabulary, prefix: Iterable[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self.stop = [text for text in stop if text]
        self.ended = False
        # Tokens before the stop string, once it has ended the text.
        self.n_kept = 0
        self._withheld = ""
        # Characters so far, and after each number of tokens.
        self._n_character = 0
        self._ends = [0]
        self._ids = deque(prefix)
        # None, from flush, ends the iterator; popping from an empty queue would raise.
        self._pieces = vocab.decode_stream(iter(self._ids.popleft, None))
        self.prefix_pieces = [next(self._pieces) for _ in tuple(self._ids)]

    def push(self, index: int) -> str:
        """Add a token; return the text that can no longer change."""
        self._ids.append(index)
        piece = next(self._pieces)
        self._ends.append(self._n_character + len(piece))
        return self.push_text(piece)

    def flush(self) -> str:
        """End the continuation; return the withheld text."""
        self._ids.append(None)
        return self.push_text("".join(self._pieces)) + self._withheld

    def push_text(self, text: str) -> str:
        """Add text; withhold stop strings and their possible beginnings from the result."""
        if self.ended:
            return ""
        self._n_character += len(text)
        text = self._withheld + text
        ends = [(place + len(stop), place) for stop in self.stop if (place := text.find(stop)) >= 0]
        if ends:
            # The stop string that is complete first, independent of token boundaries.
            self.ended = True
            self._withheld = ""
            place = min(ends)[1]
            stop_at = self._n_character - len(text) + place
            # The first token with this end: those after it print no whole character.
            self.n_kept = self._ends.index(max(end for end in self._ends if end <= stop_at))
            return text[:place]
        beginnings = (stop[:n] for stop in self.stop for n in range(1, len(stop)))
        cut = len(text) - max((len(part) for part in beginnings if text.endswith(part)), default=0)
        self._withheld = text[cut:]
        return text[:cut]
