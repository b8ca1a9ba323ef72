"""Sampling, one token at a time, with everything before it in memory.

L prompt   V vocabulary
"""

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

    Raises:
        ValueError: an empty prompt, or a number that cannot be.
    """
    check_options(len(prompt_L), length, temperature, top_k)
    device = model.probe.device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    drawn = [prompt_L.new_empty(0, device=device)]
    with evaluating(model):
        logits_V, memory = read(model, prompt_L.to(device), mem_len)
        for _ in range(length):
            drawn.append(draw(logits_V, temperature, top_k, generator))
            logits_1LV, memory = model(drawn[-1].view(1, 1), memory)
            logits_V = logits_1LV[0, -1]
    return torch.cat(drawn)


def read(model: TransformerXL, prompt_L: Tensor, mem_len: int | None) -> tuple[Tensor, Memory]:
    """The scores after the prompt's last token, and what is remembered of it."""
    memory = model.empty_memory(1, mem_len)
    for segment_L in prompt_L.split(PROMPT_SEGMENT):
        logits_1LV, memory = model(segment_L[None], memory)
    return logits_1LV[0, -1], memory


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
