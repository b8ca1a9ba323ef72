"""Prompts as text or ids, and continuations in the same form."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.vocab import Vocabulary
from ..errors import require
from .streaming import StreamingDetokenizer

Prompt = str | Tensor | np.ndarray | Sequence[int]


def is_one(prompt: Any) -> bool:
    """Return True for one prompt, False for a list of prompts."""
    is_list = isinstance(prompt, list | tuple)
    return not is_list or (len(prompt) > 0 and isinstance(prompt[0], int | np.integer))


def encode_prompt(prompt: Prompt, vocab: Vocabulary | None = None) -> Tensor:
    """Return the ids of a prompt, prompt_L; ValueError if it is invalid."""
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


def decode_as(prompt: Prompt, prompt_L: Tensor, new_L: Tensor, vocab: Vocabulary | None) -> Any:
    """Return a continuation in the form of its prompt."""
    if isinstance(prompt, Tensor):
        # A copy, because the user cannot modify a tensor made under inference_mode.
        return new_L.clone()
    if not isinstance(prompt, str):
        return new_L.tolist()
    assert vocab is not None
    # The space before a word depends on the previous word.
    text = StreamingDetokenizer(vocab, prompt_L.tolist())
    return "".join([*map(text.push, new_L.tolist()), text.flush()])
