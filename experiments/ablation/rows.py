"""Rows of the paper's Tables 6, 7 and 10, with the sizes of a laptop; figures need no more."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """Sizes of all rows."""

    n_layer: int = 3
    d_model: int = 96
    n_head: int = 4
    vocab: str = "bpe"
    n_token: int = 1024
    segment: int = 64
    """Length of a segment, and of the memory; 128 in the paper."""
    batch_size: int = 16
    steps: int = 700
    val_tokens: int = 8192
    """Tokens by whose loss the attention length is chosen."""
    test_tokens: int = 16_384
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
    published: tuple[float, float, int] | None = None
    """Perplexity with the attention length of training, the best perplexity, and its length."""
    segment: int = 128
    """The paper's segment length; in Table 10, the longest with the same GPU memory."""
    table: int = 6
    times: float = 1
    """Training tokens, as a multiple of the other rows'."""


ROWS = [
    Row("recurrence_ours_full", True, "sinusoidal", False, (27.02, 26.77, 500)),
    Row("recurrence_shaw_full", True, "shaw", False, (27.94, 27.94, 256)),
    Row("recurrence_ours_half", True, "sinusoidal", True, (28.69, 28.33, 460)),
    Row("alone_ours_full", False, "sinusoidal", False, (29.59, 29.02, 260)),
    Row("alone_ours_half", False, "sinusoidal", True, (30.10, 30.10, 120)),
    Row("alone_shaw_full", False, "shaw", False, (29.75, 29.75, 120)),
    Row("alone_shaw_half", False, "shaw", True, (30.50, 30.50, 120)),
    Row("alone_vaswani_half", False, "absolute_sinusoidal", True, (30.97, 30.97, 120)),
    Row("alone_al_rfou_half", False, "absolute_learned", True, (31.16, 31.16, 120)),
    Row("recurrence_learned_full", True, "learned", False),
    Row("alone_ours_full_176", False, "sinusoidal", False, (28.43, 27.98, 400), 176, 10),
    Row("alone_ours_half_172", False, "sinusoidal", True, (28.83, 28.83, 120), 172, 10),
]
SHUFFLED = [
    Row("shuffled_recurrence_ours", True, "sinusoidal", False, (25.2, 25.2, 0), table=7),
    Row("shuffled_recurrence_shaw", True, "shaw", False, (25.7, 25.7, 0), table=7),
    Row("shuffled_alone_ours", False, "sinusoidal", False, (27.1, 27.1, 0), table=7),
]
"""On a text without long dependencies; the paper does not give their attention lengths."""
LONGER = [
    replace(row, name=f"{row.name}_longer", times=4)
    for row in ROWS
    if row.name in ("recurrence_ours_full", "alone_ours_full")
]
"""Does recurrence help more after more training?"""
POSITIONS = {
    "sinusoidal": "the paper's", "shaw": "Shaw", "learned": "learned distances",
    "absolute_sinusoidal": "Vaswani", "absolute_learned": "Al-Rfou",
}  # fmt: skip
