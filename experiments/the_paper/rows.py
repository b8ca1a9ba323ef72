"""Rows of the paper's Tables 6 and 7, with the sizes of a laptop; figures need no more."""

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
    """A row of a table: recurrence of one network."""

    name: str
    recurrence: bool
    published: tuple[float, ...] = ()
    """Perplexity with the attention length of training, and the best one."""
    segment: int = 128
    """The paper's segment length."""


MEMORY = Row("recurrence", True, (27.02, 26.77))
ALONE = Row("none", False, (29.59, 29.02))
TIMES = 4
"""Training tokens, as a multiple of those of Sizes.steps."""


@dataclass(frozen=True)
class Kind:
    """A row and its text."""

    row: Row
    is_shuffled: bool = False
    """The lines of the text are in random order."""


KINDS = {
    "memory": Kind(MEMORY),
    "alone": Kind(ALONE),
    "shuffled memory": Kind(MEMORY, is_shuffled=True),
    "shuffled alone": Kind(ALONE, is_shuffled=True),
}
