"""Generation one token at a time, with everything before it in memory.

B texts   L tokens
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..model import CachedReader, TransformerXL, eval_mode
from .sampling import Sampling, draw_quantiles
from .state import DecodingState, advance, check_lengths, start_decoding

Prompts = TypeVar("Prompts", Tensor, Sequence[Tensor])


def generate(
    model: TransformerXL,
    prompt_L: Prompts,
    max_new_tokens: int,
    *,
    seed: int | None = None,
    mem_len: int | None = None,
    ext_len: int = 0,
    **sampling: Any,
) -> Prompts:
    """Return `max_new_tokens` ids that follow the prompt, without the prompt.

    Args:
        model: a network, used in eval mode and left in the mode it was in.
        prompt_L: at least one token to start from; or several such prompts of any lengths, each
            continued as it would be alone: the result is then a list.
        max_new_tokens: tokens to sample.
        seed: seed of the first prompt's samples, the next number for the second, and so on; left
            out, it is drawn from torch's generator.
        mem_len: states remembered; left out, as in training.
        ext_len: tokens read again with each new one, in addition to the memory. Absolute positions
            need them, because they count from the end of a segment, and so does mem_len 0.
        **sampling: fields of `Sampling`.

    Raises:
        ValueError: an empty prompt, or an invalid number.
    """
    prompts = [prompt_L] if isinstance(prompt_L, Tensor) else prompt_L
    state = start_decoding(model, prompts, mem_len)
    prompt_len = len(state)
    for after in decode_steps(model, state, max_new_tokens, Sampling(**sampling), seed, ext_len):
        state = after
    # A copy, because a tensor made under inference_mode cannot be changed by its user.
    ids = list(state.tokens_BL[:, prompt_len:].clone())
    return ids[0] if isinstance(prompt_L, Tensor) else ids


@torch.inference_mode()
def decode_steps(
    model: TransformerXL,
    state: DecodingState,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | None = None,
    ext_len: int = 0,
) -> Iterator[DecodingState]:
    """Yield the state after each new token, which is not read yet; any of them can be continued."""
    check_lengths(model, max_new_tokens, ext_len, state.memory.mem_len)
    seed = int(torch.randint(2**62, ())) if seed is None else seed
    reader = CachedReader(model)
    with eval_mode(model):
        for _ in range(max_new_tokens):
            logits_BV, state = advance(reader, state, ext_len)
            recent_BW = state.recent_tokens(sampling.penalty_window)
            quantile_B = draw_quantiles(seed, state.length_B)
            token_B = sampling.choose_tokens(logits_BV, recent_BW, quantile_B)
            state = state.append_tokens(token_B[:, None])
            yield state
