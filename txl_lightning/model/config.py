"""Every size that the paper names, under the names of the original code."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from ..errors import require

SameLength = Literal["mem_len", "mem_len+1"] | None
EvalSameLength = Literal["mem_len", "mem_len+1", "all"] | None
"""A `same_length` that is given for evaluation; None, as in training."""
LEARNED = ("learned", "shaw", "absolute_learned")
"""Position schemes with a row for each distance up to clamp_len."""

ABSOLUTE = ("absolute_sinusoidal", "absolute_learned")
"""Position schemes whose states are given other places by each segment that reads them."""


@dataclass(frozen=True)
class TransformerXLConfig:
    """Sizes and parts of a Transformer-XL (Dai et al. 2019, Section 3).

    Raises:
        ValueError: a size that no network can have; the message starts with the field's name.
    """

    n_token: int = 256
    """Vocabulary size V. The command line takes it from the corpus."""
    d_embed: int | None = None
    """Width of embeddings, projected to d_model; left out, d_model."""
    cutoffs: tuple[int, ...] = ()
    """First id of each cluster but the first; ids go by frequency. Left out, a plain vocabulary."""
    div_val: int = 1
    """How many times narrower a cluster's embeddings are than those of the one before it."""
    tie_projs: tuple[bool, ...] = ()
    """For each cluster, whether the softmax has the projection of the embedding; left out, none."""
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
    recurrence: Literal["below", "same"] = "below"
    """Whose past a layer reads: that of the one below (paper), or its own (Ding et al. 2021)."""
    same_length: SameLength = None
    """How many states each query sees, itself among them: mem_len (the original PyTorch code) or
    mem_len+1 (TensorFlow, NVIDIA); left out, or without a memory, all that are there."""
    clamp_len: int | None = None
    """Greatest distance told apart: every farther one is encoded like it. Left out, all are; but
    learned positions must have it."""
    norm: Literal["post", "pre", "pre_keys"] = "post"
    """Layer normalisation after each residual sum (paper), or before each part; pre_keys leaves
    queries as they are, as the original does with absolute positions."""
    final_norm: bool | None = None
    """Whether the last layer's output is normalised; left out, unless norm is post."""
    norm_eps: float = 1e-5
    """Added to the variance that layer normalisation divides by."""
    positions: Literal[
        "sinusoidal", "learned", "shaw", "absolute_sinusoidal", "absolute_learned"
    ] = "sinusoidal"
    """How a query knows where a state is: by distance (Section 3.3; learned, as in labml; Shaw et
    al. 2018), or by what is added to the states (Vaswani et al. 2017; Al-Rfou et al. 2019)."""
    kernel: Literal["reference", "sdpa", "matmul"] = "sdpa"
    """How attention is computed; every kernel gives the reference's result."""
    tie_weight: bool = True
    """Whether the softmax shares its matrix with the embedding."""
    untie_r: bool = False
    """Whether every layer has its own u and v; otherwise all layers share one pair."""
    dropout: float = 0.0
    """Probability of dropping hidden units."""
    dropout_mask: Literal["fresh", "locked"] = "fresh"
    """Whether each token drops other units, or all of a row in a segment the same (variational
    dropout, Gal and Ghahramani 2016)."""
    dropatt: float = 0.0
    """Probability of dropping attention weights."""
    loss_chunk: int | None = None
    """Tokens whose logits the loss holds at once, computing them again for the gradients; left out,
    all."""
    init: Literal["normal", "uniform"] = "normal"
    """How initial weights are drawn: with init_std around 0, or from -init_range to init_range."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""
    init_range: float = 0.1
    """Greatest initial weight, with init uniform."""
    proj_init_std: float = 0.01
    """Standard deviation of the initial projections of embeddings."""

    def __post_init__(self) -> None:
        for field in ("cutoffs", "tie_projs"):
            # A YAML file and a checkpoint hold lists.
            object.__setattr__(self, field, tuple(getattr(self, field)))
        for field in ("n_token", "n_layer", "n_head", "d_model", "div_val"):
            require(getattr(self, field) >= 1, field, getattr(self, field), "at least 1")
        learned = self.positions in LEARNED
        possible = self.clamp_len is None or self.clamp_len >= (0 if learned else 1)
        # A table may have one row, of distance 0.
        allowed = "at least 0" if learned else "at least 1, or null"
        require(possible, "clamp_len", self.clamp_len, allowed)
        for field in ("d_embed", "d_head", "d_inner", "loss_chunk"):
            value = getattr(self, field)
            require(value is None or value >= 1, field, value, "at least 1, or null")
        for field in ("norm_eps", "init_std", "init_range", "proj_init_std"):
            require(getattr(self, field) > 0, field, getattr(self, field), "greater than 0")
        for field in ("dropout", "dropatt"):
            value = getattr(self, field)
            require(0 <= value < 1, field, value, "at least 0 and less than 1")
        require(self.mem_len >= 0, "mem_len", self.mem_len, "0 (no memory) or more")
        require(self.d_model % 2 == 0, "d_model", self.d_model, "an even number")
        if self.d_head is None:
            divides = f"a multiple of n_head ({self.n_head}), unless d_head is given"
            require(self.d_model % self.n_head == 0, "d_model", self.d_model, divides)
        if learned:
            given = f"the greatest distance told apart, because positions are {self.positions}"
            require(self.clamp_len is not None, "clamp_len", None, given)
        self._check_clusters()

    def _check_clusters(self) -> None:
        """Refuse clusters that cannot be; the vocabulary's size may be known only later."""
        starts = (0, *self.cutoffs)
        rising = all(low < high for low, high in pairwise(starts))
        require(rising, "cutoffs", list(self.cutoffs), "growing, from above 0")
        given = len(self.tie_projs)
        fits = f"one for each of {len(starts)} clusters, or none"
        require(given in (0, len(starts)), "tie_projs", list(self.tie_projs), fits)
        require(self.div_val == 1 or self.cutoffs, "div_val", self.div_val, "1 without cutoffs")
        narrowest = self.embed_width // self.div_val ** len(self.cutoffs)
        widths = f"small enough to leave the last cluster a width ({self.embed_width} at first)"
        require(narrowest >= 1, "div_val", self.div_val, widths)

    def plain(self) -> dict[str, Any]:
        """As a checkpoint and a YAML file hold it: no tuples."""
        return asdict(self) | {"cutoffs": list(self.cutoffs), "tie_projs": list(self.tie_projs)}

    def seen(self, same_length: EvalSameLength) -> SameLength:
        """How many states each query sees, where this is given for evaluation."""
        chosen = self.same_length if same_length is None else same_length
        return None if chosen == "all" else chosen

    @property
    def is_absolute(self) -> bool:
        """Whether a state's place depends on the segment that reads it."""
        return self.positions in ABSOLUTE

    @property
    def n_distance(self) -> int:
        """Rows C of a learned table: distances 0 to clamp_len."""
        assert self.clamp_len is not None
        return self.clamp_len + 1

    @property
    def embed_width(self) -> int:
        """Width of the first cluster's embeddings, given or derived."""
        return self.d_model if self.d_embed is None else self.d_embed

    @property
    def has_projections(self) -> bool:
        """Whether embeddings are projected: one table that is as wide as the model is not."""
        return self.div_val > 1 or self.embed_width != self.d_model

    @property
    def n_table(self) -> int:
        """Tables of embeddings: one for each cluster; one for all, if they are equally wide."""
        return 1 if self.div_val == 1 else len(self.cutoffs) + 1

    @property
    def normalises_output(self) -> bool:
        """Whether a norm follows the last layer, given or derived."""
        return self.norm != "post" if self.final_norm is None else self.final_norm

    @property
    def head_width(self) -> int:
        """K, given or derived."""
        return self.d_model // self.n_head if self.d_head is None else self.d_head

    @property
    def inner_width(self) -> int:
        """F, given or derived."""
        return 4 * self.d_model if self.d_inner is None else self.d_inner
