"""Decoding one token at a time: sampling and beam search.

B texts, or beams of one text   L tokens   V vocabulary   C candidates
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import require
from ..model import CachedReader, TransformerXL, accumulator_dtype, eval_mode
from .sampling import Sampling, draw_quantiles
from .state import DecodingState, advance, start_decoding

Prompts = TypeVar("Prompts", Tensor, Sequence[Tensor])
IsFinished = Callable[[list[int]], bool]
"""Returns True if a continuation, given as ids without the prompt, ends here."""


def generate(
    model: TransformerXL,
    prompt_L: Prompts,
    max_new_tokens: int,
    *,
    mem_len: int | None = None,
    ext_len: int = 0,
    **sampling: Any,
) -> Prompts:
    """Return `max_new_tokens` ids that follow the prompt, without the prompt.

    Args:
        model: a network, used in eval mode and left in the mode it was in.
        prompt_L: at least one token; or a list of such prompts of any lengths, each continued
            independently: the result is then a list.
        max_new_tokens: tokens to sample.
        mem_len: memory length; default as in training.
        ext_len: tokens read again with each new one, in addition to the memory. Required for
            absolute positions, which count from the end of a segment, and for mem_len 0.
        **sampling: fields of `Sampling`; the seed is that of the first prompt, by default drawn
            from torch's generator.

    Raises:
        ValueError: an empty prompt, or an invalid number.
    """
    prompts = [prompt_L] if isinstance(prompt_L, Tensor) else prompt_L
    state = start_decoding(model, prompts, mem_len, ext_len)
    prompt_len = len(state)
    for after in decode_steps(model, state, max_new_tokens, Sampling(**sampling)):
        state = after
    # A copy, because callers cannot modify a tensor made under inference_mode.
    ids = list(state.tokens_BL[:, prompt_len:].clone())
    return ids[0] if isinstance(prompt_L, Tensor) else ids


@torch.inference_mode()
def decode_steps(
    model: TransformerXL, state: DecodingState, max_new_tokens: int, sampling: Sampling
) -> Iterator[DecodingState]:
    """Yield the state after each new token, which is not read yet; any of them can be continued."""
    require(max_new_tokens >= 0, "max_new_tokens", max_new_tokens, "0 or more")
    seed = int(torch.randint(2**62, ())) if sampling.seed is None else sampling.seed
    reader = CachedReader(model)
    with eval_mode(model):
        for _ in range(max_new_tokens):
            logits_BV, state = advance(reader, state)
            recent_BW = state.recent_tokens(sampling.penalty_window)
            quantile_B = draw_quantiles(seed, state.length_B)
            token_B = sampling.choose_tokens(logits_BV, recent_BW, quantile_B)
            state = state.append_tokens(token_B[:, None])
            yield state


def beam_search(
    model: TransformerXL,
    prompt_L: Tensor,
    max_new_tokens: int,
    *,
    mem_len: int | None = None,
    ext_len: int = 0,
    **search: Any,
) -> Tensor:
    """Return the ids of the most likely continuation found, without the prompt.

    mem_len and ext_len are as in `generate`, the rest as in `search_beams`; an empty prompt or an
    invalid number is a ValueError.
    """
    state = start_decoding(model, [prompt_L], mem_len, ext_len)
    best = search_beams(model, state, max_new_tokens, **search)
    return best.tokens_BL[0, len(prompt_L) :].clone()


@torch.inference_mode()
def search_beams(
    model: TransformerXL,
    state: DecodingState,
    max_new_tokens: int,
    num_beams: int = 4,
    length_penalty: float = 1.0,
    is_finished: IsFinished | None = None,
) -> DecodingState:
    """Return one text with its best continuation, whose last token is not read yet.

    Args:
        model: a network.
        state: the text.
        max_new_tokens: longest continuation.
        num_beams: continuations kept at each length.
        length_penalty: log-probabilities are divided by the length to this power: 1 compares means
            per token, 0 prefers short continuations.
        is_finished: ends a continuation early; default never.
    """
    require(max_new_tokens >= 0, "max_new_tokens", max_new_tokens, "0 or more")
    require(num_beams >= 1, "num_beams", num_beams, "at least 1")
    require(length_penalty >= 0, "length_penalty", length_penalty, "0 or more")
    prompt_len, best, best_score = len(state), state, float("-inf")
    logp_B = torch.zeros(1, dtype=torch.float64, device=model.device)
    reader = CachedReader(model)
    with eval_mode(model):
        for step in range(1, max_new_tokens + 1):
            logits_BV, state = advance(reader, state)
            # Twice as many, so that enough continuations remain after some have ended.
            logp_C, row_C, token_C = extend_beams(logp_B, logits_BV, 2 * num_beams)
            ids_C = torch.cat([state.tokens_BL[row_C, prompt_len:], token_C[:, None]], 1).tolist()
            at_end = step == max_new_tokens
            ended_C = [at_end or (is_finished is not None and is_finished(ids)) for ids in ids_C]
            if any(ended_C):
                # Candidates are sorted, most likely first.
                top = [ended_C.index(True)]
                if (score := logp_C[top].item() / step**length_penalty) > best_score:
                    best, best_score = append_choice(state, row_C[top], token_C[top]), score
            live = [number for number, ended in enumerate(ended_C) if not ended][:num_beams]
            # More tokens lower the log-probability; only the length penalty can compensate.
            if not live or best_score >= logp_C[live[0]] / max_new_tokens**length_penalty:
                break
            state, logp_B = append_choice(state, row_C[live], token_C[live]), logp_C[live]
    return best


def extend_beams(logp_B: Tensor, logits_BV: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return logp_C, row_C and token_C of the most likely one-token extensions, best first."""
    wide_BV = logits_BV.to(accumulator_dtype(logits_BV.device))
    logp_BV = logp_B[:, None] + wide_BV.log_softmax(dim=-1)
    logp_C, index_C = logp_BV.flatten().topk(min(count, logp_BV.numel()))
    return logp_C, index_C // logp_BV.size(1), index_C % logp_BV.size(1)


def append_choice(state: DecodingState, row_C: Tensor, token_C: Tensor) -> DecodingState:
    return state.select_rows(row_C).append_tokens(token_C[:, None])
