"""generate: continue a prompt."""

import torch

from ..checkpoints import load_readable
from ..generation import generate


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
        ckpt_path: A checkpoint written by fit, or a folder written by convert.
        prompt: What to continue.
        length: Tokens to sample.
        temperature: What logits are divided by; 0 always takes the likeliest token.
        top_k: How many of the likeliest tokens may be drawn.
        seed: Of the draws: the same seed prints the same text.
        mem_len: States remembered; left out, what the model was trained with.
    """
    # Numbers too small to be normal slow a CPU's step several-fold.
    torch.set_flush_denormal(True)
    model, vocab = load_readable(ckpt_path)
    prompt_L = torch.from_numpy(vocab.encode_text(prompt, where="prompt").astype("int64"))
    options = {"temperature": temperature, "top_k": top_k, "seed": seed, "mem_len": mem_len}
    ids_L = generate(model, prompt_L, length, **options)
    print(vocab.decode([*prompt_L.tolist(), *ids_L.tolist()]))
