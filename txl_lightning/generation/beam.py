"""Beam search: not what is drawn, but the likeliest text that is found.

B beams   V vocabulary   C candidates
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import require
from ..model import TransformerXL, accumulator_dtype, eval_mode
from .state import DecodingState, begun, check_context, read

Ended = Callable[[list[int]], bool]
"""Whether a continuation, without its prompt, is whole."""


def never(ids: list[int]) -> bool:
    """A continuation ends where the length is reached."""
    return False


def beam_search(
    model: TransformerXL,
    prompt_L: Tensor,
    length: int,
    *,
    n_beam: int = 4,
    length_penalty: float = 1.0,
    ended: Ended = never,
    mem_len: int | None = None,
    ext_len: int = 0,
) -> Tensor:
    """The likeliest tokens that are found to follow the prompt, without the prompt.

    Args:
        model: a network, used in eval mode and left in the mode it was in.
        prompt_L: at least one token to start from.
        length: most tokens of a continuation.
        n_beam: continuations that are kept at each length.
        length_penalty: log-probabilities are divided by the length to this power, so that 1
            compares means, and 0 prefers short continuations.
        ended: whether a continuation goes no further; left out, none ends before the length.
        mem_len: states remembered; left out, what the model was trained with.
        ext_len: tokens that are read again with each new one, as in `generate`.

    Raises:
        ValueError: an empty prompt, or a number that cannot be.
    """
    texts = begun(model, [prompt_L], mem_len)
    best = search(model, texts, length, n_beam, length_penalty, ended, ext_len)
    return best.tokens_BL[0, len(prompt_L) :].clone()


@dataclass(frozen=True)
class Found:
    """The best continuation that is whole."""

    texts: DecodingState
    score: float


@torch.inference_mode()
def search(
    model: TransformerXL,
    texts: DecodingState,
    length: int,
    n_beam: int = 4,
    length_penalty: float = 1.0,
    ended: Ended = never,
    ext_len: int = 0,
) -> DecodingState:
    """One text with its best continuation, whose last token is not read yet.

    Raises:
        ValueError: a number that cannot be.
    """
    require(n_beam >= 1, "n_beam", n_beam, "at least 1")
    require(length_penalty >= 0, "length_penalty", length_penalty, "0 or more")
    require(length >= 0, "length", length, "0 or more")
    check_context(model, ext_len, texts.memory.mem_len)
    before, best = len(texts), Found(texts, float("-inf"))
    logp_B = torch.zeros(1, dtype=torch.float64, device=texts.tokens_BL.device)
    with eval_mode(model):
        for step in range(1, length + 1):
            logits_BV, texts = read(model, texts, ext_len)
            found = candidates(texts, logp_B, logits_BV, 2 * n_beam)
            whole_C = [step == length or ended(ids) for ids in found.ids(before)]
            best = found.best(best, whole_C, step**length_penalty)
            live = [row for row, whole in enumerate(whole_C) if not whole][:n_beam]
            # Each further token makes a text less likely; only its length can make up for that.
            if not live or best.score >= found.logp_C[live[0]] / length**length_penalty:
                break
            texts, logp_B = found.chosen(live), found.logp_C[live]
    return best.texts


@dataclass(frozen=True)
class Candidates:
    """Texts with one token more, likeliest first; memories stay where they are until chosen."""

    texts: DecodingState
    row_C: Tensor
    """Which of the texts it is."""
    token_C: Tensor
    """What comes after it."""
    logp_C: Tensor

    def ids(self, start: int) -> list[list[int]]:
        """The tokens of each, from there on."""
        tokens_BL = self.texts.tokens_BL[:, start:]
        return torch.cat([tokens_BL[self.row_C], self.token_C[:, None]], 1).tolist()

    def chosen(self, numbers: list[int]) -> DecodingState:
        """Some of them."""
        return self.texts.rows(self.row_C[numbers]).followed_by(self.token_C[numbers, None])

    def best(self, best: Found, whole_C: list[bool], norm: float) -> Found:
        """The best continuation, with those among these that are whole."""
        for number, whole in enumerate(whole_C):
            if whole:
                # The first one is the likeliest.
                score = self.logp_C[number].item() / norm
                return Found(self.chosen([number]), score) if score > best.score else best
        return best


def candidates(texts: DecodingState, logp_B: Tensor, logits_BV: Tensor, count: int) -> Candidates:
    """The likeliest of all texts with one token more."""
    logp_BV = logp_B[:, None] + logits_BV.to(accumulator_dtype(logits_BV.device)).log_softmax(
        dim=-1
    )
    logp_C, index_C = logp_BV.flatten().topk(min(count, logp_BV.numel()))
    return Candidates(texts, index_C // logp_BV.size(1), index_C % logp_BV.size(1), logp_C)
