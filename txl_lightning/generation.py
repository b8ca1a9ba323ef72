"""Sampling, one token at a time, with everything before it in memory.

L prompt   V vocabulary
"""

import torch
from torch import Tensor

from .checkpoints import load_run
from .data import DataError
from .model import Memory, TransformerXL

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
    device = model.embedding.weight.device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    was_training = model.training
    model.eval()
    logits_V, memory = read(model, prompt_L.to(device), mem_len)
    drawn = []
    for _ in range(length):
        drawn.append(draw(logits_V, temperature, top_k, generator))
        logits_1LV, memory = model(drawn[-1].view(1, 1), memory)
        logits_V = logits_1LV[0, -1]
    model.train(was_training)
    return torch.cat(drawn) if drawn else prompt_L.new_empty(0)


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
    if prompt_len == 0:
        raise ValueError("prompt: it is empty; it must have at least one token")
    if length < 0:
        raise ValueError(f"length: {length} is not possible; it must be 0 or more")
    if temperature < 0:
        raise ValueError(f"temperature: {temperature} is not possible; it must be 0 or more")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k: {top_k} is not possible; it must be at least 1")


def generate_verb(
    ckpt_path: str,
    prompt: str = "\n",
    length: int = 500,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int | None = None,
    mem_len: int | None = None,
) -> None:
    """Print text that a trained model continues the prompt with.

    Args:
        ckpt_path: A checkpoint written by fit.
        prompt: What to continue.
        length: Tokens to sample.
        temperature: What logits are divided by; 0 always takes the likeliest token.
        top_k: How many of the likeliest tokens may be drawn.
        seed: Of the draws: the same seed prints the same text.
        mem_len: States remembered; left out, what the model was trained with.
    """
    model, vocab = load_run(ckpt_path)
    try:
        prompt_L = torch.from_numpy(vocab.encode_text(prompt).astype("int64"))
    except DataError as error:
        raise DataError(f"prompt{str(error).removeprefix('text')}") from error
    options = {"temperature": temperature, "top_k": top_k, "seed": seed, "mem_len": mem_len}
    ids_L = generate(model, prompt_L, length, **options)
    print(prompt + vocab.decode(ids_L.tolist()))
