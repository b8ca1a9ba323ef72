"""Every size that the paper names, under the names of the original code."""

from dataclasses import dataclass
from typing import Literal


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Refuse a user's value in one line.

    Raises:
        ValueError: `holds` is false; the message starts with the field.
    """
    if not holds:
        raise ValueError(f"{field}: {value} is not possible; it must be {allowed}")


@dataclass(frozen=True)
class TransformerXLConfig:
    """Sizes and parts of a Transformer-XL (Dai et al. 2019, Section 3).

    Raises:
        ValueError: a size that no network can have; the message starts with the field's name.
    """

    n_token: int = 256
    """Vocabulary size V. The command line takes it from the corpus."""
    n_layer: int = 4
    """Number of layers N."""
    n_head: int = 4
    """Attention heads H in each layer."""
    d_model: int = 128
    """Width D of the hidden states; even, because each frequency is a sine and a cosine."""
    d_head: int | None = None
    """Width K of a head; left out, it is d_model / n_head."""
    d_inner: int | None = None
    """Inner width F of the feed-forward; left out, it is 4 * d_model."""
    mem_len: int = 128
    """Hidden states M remembered per layer while training; 0 is a plain Transformer."""
    clamp_len: int | None = None
    """Greatest distance told apart: every farther one is encoded like it. Left out, all are."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual sum (paper), or before each part."""
    final_norm: bool | None = None
    """Whether the last layer's output is normalised; left out, with pre-norm only."""
    positions: Literal["sinusoidal"] = "sinusoidal"
    """What distance adds to a score (Section 3.3)."""
    kernel: Literal["reference", "sdpa", "matmul"] = "sdpa"
    """How attention is computed; every kernel gives the reference's result."""
    tie_weight: bool = True
    """Whether the softmax shares its matrix with the embedding."""
    untie_r: bool = False
    """Whether every layer has its own u and v; otherwise all layers share one pair."""
    dropout: float = 0.0
    """Probability of dropping hidden units."""
    dropatt: float = 0.0
    """Probability of dropping attention weights."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        for field in ("n_token", "n_layer", "n_head", "d_model"):
            require(getattr(self, field) >= 1, field, getattr(self, field), "at least 1")
        for field in ("d_head", "d_inner", "clamp_len"):
            value = getattr(self, field)
            require(value is None or value >= 1, field, value, "at least 1, or null")
        for field in ("dropout", "dropatt"):
            value = getattr(self, field)
            require(0 <= value < 1, field, value, "at least 0 and less than 1")
        require(self.mem_len >= 0, "mem_len", self.mem_len, "0 (no memory) or more")
        require(self.init_std > 0, "init_std", self.init_std, "greater than 0")
        require(self.d_model % 2 == 0, "d_model", self.d_model, "an even number")
        if self.d_head is None:
            divides = f"a multiple of n_head ({self.n_head}), unless d_head is given"
            require(self.d_model % self.n_head == 0, "d_model", self.d_model, divides)

    @property
    def normalises_output(self) -> bool:
        """Whether a norm follows the last layer, given or derived."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm

    @property
    def head_width(self) -> int:
        """K, given or derived."""
        return self.d_model // self.n_head if self.d_head is None else self.d_head

    @property
    def inner_width(self) -> int:
        """F, given or derived."""
        return 4 * self.d_model if self.d_inner is None else self.d_inner
