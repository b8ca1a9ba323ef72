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
    """A row of a table: recurrence, positions and loss of one network."""

    name: str
    recurrence: bool
    positions: str
    half: bool
    """The loss is on the second half of the segment only."""
    published: tuple[float, ...] = ()
    """Perplexity with the attention length of training, and the best one."""
    segment: int = 128
    """The paper's segment length; in Table 10, the longest with the same GPU memory."""


ROWS = [
    Row("recurrence", True, "sinusoidal", False, (27.02, 26.77)),
    Row("recurrence, Shaw's positions", True, "shaw", False, (27.94, 27.94)),
    Row("recurrence, learned distances", True, "learned", False),
    Row("recurrence, half loss", True, "sinusoidal", True, (28.69, 28.33)),
    Row("none", False, "sinusoidal", False, (29.59, 29.02)),
    Row("none, Shaw's positions", False, "shaw", False, (29.75, 29.75)),
    Row("none, half loss", False, "sinusoidal", True, (30.10, 30.10)),
    Row("none, half loss, Shaw's positions", False, "shaw", True, (30.50, 30.50)),
    Row("none, half loss, absolute sinusoids", False, "absolute_sinusoidal", True, (30.97, 30.97)),
    Row("none, half loss, learned absolute", False, "absolute_learned", True, (31.16, 31.16)),
]
MEMORY, SHAW, LEARNED, HALF, ALONE, SHAW_ALONE, *_ = ROWS
LONG = Row("none, longer segments", False, "sinusoidal", False, (28.43, 27.98), 176)
"""Of Table 10."""
TIMES = 4
"""Training tokens, as a multiple of those after which the rows of Table 6 are compared early."""


@dataclass(frozen=True)
class Kind:
    """A row and its training; early ones have a quarter of it, and no rate of their own."""

    row: Row
    times: float = TIMES
    is_early: bool = False
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
} | {f"early: {row.name}": Kind(row, 1, is_early=True) for row in ROWS}
READ = (MEMORY, SHAW, LEARNED)
"""Early rows that are read with other memories than that of training."""
READ_LENS = (0, 16, 32, 64, 128, 256, 512, 1024)
