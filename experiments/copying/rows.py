"""Networks of the paper's Table 6, with the sizes of a laptop; figures need no more."""

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
    steps: int = 11_200
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
    """A network of the paper's Table 6: with recurrence or none."""

    name: str
    recurrence: bool
    times: int = 1
    """Length of a segment, as a multiple of Sizes.segment."""


MEMORY = Row("recurrence", True)
ALONE = Row("none", False)
LONG = Row("none, segments of 128", False, times=2)
ROWS = {"memory": MEMORY, "alone": ALONE, "long": LONG}
"""All have equal numbers of updates; "long" has twice the training tokens of the others."""
