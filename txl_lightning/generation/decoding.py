"""Texts continued, one token at a time, with everything before it in memory.

B rows   L tokens
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from ..errors import require
from ..model import TransformerXL, eval_mode
from .sampling import Sampling, ranks
from .state import DecodingState, begun, check_context, read


@overload
def generate(model: TransformerXL, prompt_L: Tensor, length: int, **options: Any) -> Tensor: ...
@overload
def generate(
    model: TransformerXL, prompt_L: Sequence[Tensor], length: int, **options: Any
) -> list[Tensor]: ...
def generate(
    model: TransformerXL,
    prompt_L: Tensor | Sequence[Tensor],
    length: int,
    *,
    seed: int | None = None,
    mem_len: int | None = None,
    ext_len: int = 0,
    **sampling: Any,
) -> Tensor | list[Tensor]:
    """`length` tokens that follow the prompt, without the prompt; of several prompts, a list.

    Args:
        model: a network, used in eval mode and left in the mode it was in.
        prompt_L: at least one token to start from; or several such prompts of any lengths, of
            which each is continued as it would be alone.
        length: tokens to sample.
        seed: of the draws of the first prompt, the next number of the second, and so on; left out,
            it comes from torch's own generator.
        mem_len: states remembered; left out, what the model was trained with.
        ext_len: tokens that are read again with each new one, beside what is remembered. Absolute
            positions need them, because a token's place is counted from the end of what is read,
            and so does a model without a memory.
        **sampling: `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty` and
            `penalty_window`, as in `Sampling`.

    Raises:
        ValueError: an empty prompt, or a number that cannot be.
    """
    prompts = [prompt_L] if isinstance(prompt_L, Tensor) else prompt_L
    texts = begun(model, prompts, mem_len)
    before = len(texts)
    for after in continued(model, texts, length, Sampling(**sampling), seed, ext_len):
        texts = after
    ids = list(texts.tokens_BL[:, before:].clone())
    return ids[0] if isinstance(prompt_L, Tensor) else ids


@torch.inference_mode()
def continued(
    model: TransformerXL,
    texts: DecodingState,
    length: int,
    sampling: Sampling,
    seed: int | None = None,
    ext_len: int = 0,
) -> Iterator[DecodingState]:
    """The texts after each of `length` tokens that are drawn; that token is not read yet.

    To go on another day, it is enough to have what was given last.

    Raises:
        ValueError: a number that cannot be.
    """
    require(length >= 0, "length", length, "0 or more")
    check_context(model, ext_len, texts.memory.mem_len)
    seed = int(torch.randint(2**62, ())) if seed is None else seed
    with eval_mode(model):
        for _ in range(length):
            logits_BV, texts = read(model, texts, ext_len)
            recent_BW = texts.recent(sampling.penalty_window)
            token_B = sampling.choose(logits_BV, recent_BW, ranks(seed, texts.length_B))
            texts = texts.followed_by(token_B[:, None])
            yield texts
