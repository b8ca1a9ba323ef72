"""Rows of the paper's Tables 6, 7 and 10, with the sizes of a laptop; figures need no more."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    n_layer: int = 3
    d_model: int = 96
    n_head: int = 4
    vocab: str = "bpe"
    n_token: int = 1024
    segment: int = 64
    """Length of a segment, and of the memory; 128 in the paper."""
    batch_size: int = 16
    steps: int = 700
    val_tokens: int = 16_384
    """Tokens by whose loss the attention length is chosen."""
    test_tokens: int = 32_768
    attention_lens: tuple[int, ...] = (16, 32, 64, 96, 128)
    memory_lens: tuple[int, ...] = (16, 32, 64, 96, 128, 192, 256, 384)


FAST = Sizes(
    n_layer=2, d_model=16, n_head=2, vocab="bytes", n_token=256, segment=16, batch_size=4, steps=4,
    val_tokens=512, test_tokens=512, attention_lens=(8, 16), memory_lens=(8, 16, 32),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row of a table: recurrence and positions of one network."""

    name: str
    recurrence: bool
    positions: str
    published: tuple[float, ...] = ()
    """Perplexity with the attention length of training, and the best one."""
    segment: int = 128
    """The paper's segment length; in Table 10, the longest with the same GPU memory."""
    wider: int = 0
    """What d_inner has beyond 4 d_model, so that all have equal numbers of parameters."""


MEMORY = Row("recurrence", True, "sinusoidal", (27.02, 26.77))
SHAW = Row("recurrence, Shaw's positions", True, "shaw", (27.94, 27.94), wider=32)
ALONE = Row("none", False, "sinusoidal", (29.59, 29.02))
SHAW_ALONE = Row("none, Shaw's positions", False, "shaw", (29.75, 29.75), wider=40)
LONG = Row("none, longer segments", False, "sinusoidal", (28.43, 27.98), 176)
"""Of Table 10."""
TIMES = 4
"""Training tokens, as a multiple of those of Sizes.steps."""


@dataclass(frozen=True)
class Kind:
    """A row and its training."""

    row: Row
    times: float = TIMES
    is_shuffled: bool = False
    """The lines of the text are in random order."""


KINDS = {
    "memory": Kind(MEMORY),
    "alone": Kind(ALONE),
    "long, equal tokens": Kind(LONG),
    "long, equal updates": Kind(LONG, TIMES * 88 / 64),
    "shaw memory": Kind(SHAW),
    "shaw alone": Kind(SHAW_ALONE),
    "shuffled memory": Kind(MEMORY, is_shuffled=True),
    "shuffled alone": Kind(ALONE, is_shuffled=True),
}
