"""Beam search: the likeliest continuation found, instead of a sampled one.

B beams   V vocabulary   C candidates
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import require
from ..model import CachedReader, TransformerXL, accumulator_dtype, eval_mode
from .state import DecodingState, advance, check_lengths, start_decoding

IsFinished = Callable[[list[int]], bool]
"""Tells from the ids of a continuation, without its prompt, if it ends here."""


def beam_search(
    model: TransformerXL,
    prompt_L: Tensor,
    max_new_tokens: int,
    *,
    mem_len: int | None = None,
    **search: Any,
) -> Tensor:
    """Return the ids of the likeliest continuation found, without the prompt.

    Args:
        model: a network, used in eval mode and left in the mode it was in.
        prompt_L: at least one token to start from.
        max_new_tokens: longest continuation.
        mem_len: states remembered; left out, as in training.
        **search: num_beams, length_penalty, is_finished and ext_len, as in `search_beams`.

    Raises:
        ValueError: an empty prompt, or an invalid number.
    """
    state = start_decoding(model, [prompt_L], mem_len)
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
    ext_len: int = 0,
) -> DecodingState:
    """Return one text with its best continuation, whose last token is not read yet.

    Args:
        model: a network.
        state: the text.
        max_new_tokens: longest continuation.
        num_beams: continuations kept at each length.
        length_penalty: log-probabilities are divided by the length to this power: 1 compares means
            per token, 0 prefers short continuations.
        is_finished: ends a continuation early; left out, all have max_new_tokens.
        ext_len: tokens read again with each new one, as in `generate`.
    """
    require(num_beams >= 1, "num_beams", num_beams, "at least 1")
    require(length_penalty >= 0, "length_penalty", length_penalty, "0 or more")
    check_lengths(model, max_new_tokens, ext_len, state.memory.mem_len)
    prompt_len, best, best_score = len(state), state, float("-inf")
    logp_B = torch.zeros(1, dtype=torch.float64, device=model.device)
    reader = CachedReader(model)
    with eval_mode(model):
        for step in range(1, max_new_tokens + 1):
            logits_BV, state = advance(reader, state, ext_len)
            # Twice as many, so that those that end leave enough to go on with.
            logp_C, row_C, token_C = extend_beams(logp_B, logits_BV, 2 * num_beams)
            ids_C = torch.cat([state.tokens_BL[row_C, prompt_len:], token_C[:, None]], 1).tolist()
            at_end = step == max_new_tokens
            ended_C = [at_end or (is_finished is not None and is_finished(ids)) for ids in ids_C]
            if any(ended_C):
                # The first of them is the likeliest.
                top = [ended_C.index(True)]
                if (score := logp_C[top].item() / step**length_penalty) > best_score:
                    best, best_score = append_choice(state, row_C[top], token_C[top]), score
            live = [number for number, ended in enumerate(ended_C) if not ended][:num_beams]
            # More tokens make a text less likely; only its length can compensate.
            if not live or best_score >= logp_C[live[0]] / max_new_tokens**length_penalty:
                break
            state, logp_B = append_choice(state, row_C[live], token_C[live]), logp_C[live]
    return best


def extend_beams(logp_B: Tensor, logits_BV: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return logp_C, row_C and token_C of the likeliest texts with one token more, best first."""
    wide_BV = logits_BV.to(accumulator_dtype(logits_BV.device))
    logp_BV = logp_B[:, None] + wide_BV.log_softmax(dim=-1)
    logp_C, index_C = logp_BV.flatten().topk(min(count, logp_BV.numel()))
    return logp_C, index_C // logp_BV.size(1), index_C % logp_BV.size(1)


def append_choice(state: DecodingState, row_C: Tensor, token_C: Tensor) -> DecodingState:
    return state.select_rows(row_C).append_tokens(token_C[:, None])
