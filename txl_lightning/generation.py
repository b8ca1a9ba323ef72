"""Sampling, one token at a time, with everything before it in memory.

L prompt   V vocabulary
"""

from itertools import pairwise

import torch
from torch import Tensor

from .model import Memory, TransformerXL, evaluating, require

PROMPT_SEGMENT = 128


@torch.no_grad()
def generate(
    model: TransformerXL,
    prompt_L: Tensor,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | None = None,
    mem_len: int | None = None,
    ext_len: int = 0,
) -> Tensor:
    """`length` tokens that follow the prompt, without the prompt.

    Args:
        model: a network, used in eval mode and left in the mode it was in.
        prompt_L: at least one token to start from.
        length: tokens to sample.
        temperature: what logits are divided by; 0 always takes the likeliest token.
        top_k: how many of the likeliest tokens may be drawn; left out, all.
        seed: of the draws; left out, torch's own generator is used.
        mem_len: states remembered; left out, what the model was trained with.
        ext_len: tokens that are read again with each new one, beside what is remembered. Absolute
            positions need them, because a token's place is counted from the end of what is read,
            and so does a model without a memory.

    Raises:
        ValueError: an empty prompt, or a number that cannot be.
    """
    check_options(len(prompt_L), length, temperature, top_k)
    check_context(model, ext_len)
    device = model.probe.device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    text_L = prompt_L.to(device)
    with evaluating(model):
        memory = model.empty_memory(1, mem_len)
        # The last token by itself, as those that are drawn: its place is the same as theirs.
        last = len(text_L) - 1
        starts = [*range(0, last, PROMPT_SEGMENT), last]
        for start, stop in pairwise([*starts, len(text_L)]):
            scores_V, memory = read(model, text_L[:stop], start, memory, ext_len)
        for _ in range(length):
            drawn_1 = draw(scores_V, temperature, top_k, generator)
            text_L = torch.cat([text_L, drawn_1])
            scores_V, memory = read(model, text_L, len(text_L) - 1, memory, ext_len)
    return text_L[len(prompt_L) :]


def read(
    model: TransformerXL, text_L: Tensor, start: int, memory: Memory, ext_len: int
) -> tuple[Tensor, Memory]:
    """The scores after a text of which all before `start` is read, and what is remembered of it."""
    window_L = text_L[max(start - ext_len, 0) :]
    h_1LD, memory = model.hidden(window_L[None], memory, again=min(ext_len, len(text_L)))
    return model.head(h_1LD[0, -1]), memory


def check_context(model: TransformerXL, ext_len: int) -> None:
    """Refuse to read a token after the other where each would be the first."""
    absolute = model.config.is_absolute
    least = "at least 1, because positions are absolute" if absolute else "0 or more"
    require(ext_len >= int(absolute), "ext_len", ext_len, least)


def draw(
    logits_V: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """One token, as a tensor of one."""
    if temperature == 0:
        return logits_V.argmax(keepdim=True)
    if top_k is not None:
        least = logits_V.topk(min(top_k, len(logits_V))).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, float("-inf"))
    p_V = (logits_V.float() / temperature).softmax(dim=-1)
    return torch.multinomial(p_V, 1, generator=generator)


def check_options(prompt_len: int, length: int, temperature: float, top_k: int | None) -> None:
    """Refuse what cannot be sampled."""
    require(prompt_len > 0, "prompt", "an empty one", "at least one token")
    require(length >= 0, "length", length, "0 or more")
    require(temperature >= 0, "temperature", temperature, "0 or more")
    require(top_k is None or top_k >= 1, "top_k", top_k, "at least 1, or null")
