"""Protocols: how a text is read when it is scored, and what is learned from it, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ..data.stream import Stream
from ..data.tokens import FixedLengths, Tokens
from ..errors import DataError, convert_fields, require, require_at_least, require_positive
from ..model import EvalLengths, EvalSameLength, NetworkConfig
from ..model.adaptation import Adaptation
from ..model.memory import describe_new_distances


@dataclass(frozen=True)
class ProtocolOptions:
    """Overrides of a protocol; None keeps the protocol's value."""

    batch_size: int | None = None
    """Rows of the text that are read in parallel."""
    tgt_len: int | None = None
    """Tokens per segment."""
    mem_len: int | None = None
    """Memory length: cached hidden states per layer."""
    clamp_len: int | None = None
    """Largest relative distance; larger ones are clamped."""
    same_length: EvalSameLength = None
    """Number of states each query attends to; all: no limit."""
    ext_len: int | None = None
    """Tokens that each segment reads again before its own, unscored."""
    warmup_len: int | None = None
    """Tokens that each row but the first reads before its own, unscored."""
    max_tokens: int | None = None
    """Maximum number of tokens to score, from the beginning of the text."""
    drop_last: bool | None = None
    """Leave out the last tokens, which do not fill all rows."""


@dataclass(frozen=True)
class Protocol:
    """Rows and segments in which a text is scored, and what is learned from it.

    Fields are as in ProtocolOptions. None means, for mem_len, clamp_len and same_length, the value
    of training; for tgt_len, one segment for the whole text; for max_tokens, no limit. Rows start
    with an empty memory and a warm-up: results are independent of batch_size only if the warm-up
    covers the context of all layers.
    """

    batch_size: int = 1
    tgt_len: int | None = 128
    mem_len: int | None = None
    clamp_len: int | None = None
    same_length: EvalSameLength = None
    ext_len: int = 0
    warmup_len: int = 0
    max_tokens: int | None = None
    drop_last: bool = False
    adaptation: Adaptation = Adaptation()
    """The ways in which the text is learned from."""
    cuda_graph: bool = False
    """Compute each segment as one CUDA graph; not run on a GPU yet."""
    name: str = "segments"
    source: str = "individual lengths"
    """Source of the values."""
    unit: Literal["bits", "perplexity"] = "bits"
    """Unit of the published results."""

    def __post_init__(self) -> None:
        convert_fields(self)
        require_at_least(self, batch_size=1, tgt_len=1, mem_len=0, clamp_len=1)
        require_at_least(self, ext_len=0, warmup_len=0, max_tokens=1)
        self.adaptation.require_no_warmup(self.warmup_len)

    @property
    def full_name(self) -> str:
        """Name in results, where what adapts is never mixed with what does not."""
        return f"{self.name}-adapted" if self.adaptation.adapts else self.name

    @property
    def lengths(self) -> EvalLengths:
        return EvalLengths(self.mem_len, self.clamp_len, self.same_length)

    def describe_new_distances(
        self, config: NetworkConfig, trained_len: int | None, n_token: int
    ) -> str | None:
        """Return a notice if the lengths, other than by default, have larger distances than those
        of training; `n_token` tokens are read."""
        default = PROTOCOLS["segments"]
        names = ("tgt_len", "ext_len", "mem_len", "same_length")
        if all(getattr(self, name) == getattr(default, name) for name in names):
            return None
        # The last token of a row is not read.
        n_read = self.warmup_len + -(-n_token // self.batch_size) - 1
        segment_len = (self.tgt_len or n_read) + self.ext_len
        how = self.lengths, segment_len, n_read, "--clamp_len {}"
        return describe_new_distances(config, trained_len, *how)

    def stream(self, tokens: Tokens) -> Stream:
        n_token = len(tokens) if self.max_tokens is None else min(len(tokens), self.max_tokens + 1)
        if n_token < 2 * self.batch_size:
            needs = f"batch_size {self.batch_size:,} needs 2 in each row"
            raise DataError(f"the text has {n_token:,} tokens; {needs}")
        reading = {"warmup_len": self.warmup_len, "ext_len": self.ext_len}
        reading |= {"n_token": n_token, "drop_last": self.drop_last}
        return Stream(tokens, self.batch_size, FixedLengths(self.tgt_len or n_token), **reading)


def make_window_lengths(window: int) -> dict[str, int]:
    """Return the lengths that predict each token from exactly the last `window` tokens."""
    require_positive(window=window)
    return {"tgt_len": 1, "mem_len": 0, "ext_len": window - 1, "warmup_len": window}


# As in the original's iterator, last tokens are dropped.
ORIGINAL = Protocol(same_length="mem_len", drop_last=True)
NVIDIA = ("DeepLearningExamples, Transformer-XL, eval.py", "perplexity", 16)
FIELDS = (
    "source", "unit", "batch_size", "tgt_len", "mem_len", "clamp_len", "same_length", "warmup_len",
)  # fmt: skip
PUBLISHED = {
    "paper-enwik8-base": ("pytorch/run_enwik8_base.sh", "bits", 10, 80, 2100, 820),
    "paper-enwik8-large": ("pytorch/run_enwik8_large.sh", "bits", 10, 128, 3800, 1000),
    "paper-text8-base": ("pytorch/run_text8_base.sh", "bits", 10, 80, 2100, 820),
    "paper-text8-large": ("pytorch/run_text8_large.sh", "bits", 10, 128, 3800, 1000),
    "paper-wt103-base": ("pytorch/run_wt103_base.sh", "perplexity", 10, 64, 640, 400),
    "paper-wt103-large": ("pytorch/run_wt103_large.sh", "perplexity", 10, 128, 1600, 1000),
    "paper-lm1b-base": ("pytorch/run_lm1b_base.sh", "perplexity", 64, 32, 128, None),
    "paper-lm1b-large": ("pytorch/run_lm1b_large.sh", "perplexity", 8, 32, 128, None),
    # No script was published: the lengths of configs/paper/ptb.yaml.
    "paper-ptb": ("configs/paper/ptb.yaml", "perplexity", 10, 64, 640, 140),
    # Whole segments of the previous row fill the memory; the first row starts empty.
    "nvidia-wt103-base": (*NVIDIA, 64, 640, 400, "mem_len+1", 640),
    "nvidia-wt103-large": (*NVIDIA, 128, 1600, 1000, "mem_len+1", 1664),
    "fairseq-wt103": ("examples/truncated_bptt", "perplexity", 1, 64, 640, 400),
}
"""FIELDS of published protocols; ORIGINAL has what is left out."""
WINDOW = {"batch_size": 32, "max_tokens": 1000, **make_window_lengths(512)}
TABLE = {
    "segments": Protocol(),
    "single-pass": Protocol(source="all in one segment", tgt_len=None, mem_len=0, max_tokens=4096),
    "sliding-window": Protocol(source="Al-Rfou et al. 2019", **WINDOW),
    **{
        name: replace(ORIGINAL, **dict(zip(FIELDS, row, strict=False)))
        for name, row in PUBLISHED.items()
    },
}
ALIASES = {name.removesuffix("-base"): name for name in TABLE if name.endswith("-base")}
PROTOCOLS = {name: replace(protocol, name=name) for name, protocol in TABLE.items()}


def get_protocol(
    protocol: str = "segments", *, window: int | None = None, **changes: Any
) -> Protocol:
    """Return a protocol by its name or alias, with changes.

    Args:
        protocol: One of the names in PROTOCOLS or ALIASES.
        window: Predict each token from exactly this many: tgt_len 1, mem_len 0, warmup_len
            `window`, ext_len one less.
        **changes: Overrides of the protocol's values.
    """
    name = ALIASES.get(protocol, protocol)
    require(name in PROTOCOLS, "protocol", protocol, f"one of {', '.join([*PROTOCOLS, *ALIASES])}")
    values = {} if window is None else make_window_lengths(window)
    options = asdict(ProtocolOptions(**changes))
    values |= {field: value for field, value in options.items() if value is not None}
    return replace(PROTOCOLS[name], **values)
