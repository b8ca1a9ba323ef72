"""How a text is read when it is scored: the published ways and one's own, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ..data.orders import FixedLengths
from ..data.stream import Stream
from ..data.tokens import Tokens
from ..errors import DataError, require
from ..model import EvalLengths, EvalSameLength


@dataclass(frozen=True)
class Protocol:
    """A way to read a text in rows and segments.

    Raises:
        ValueError: a length that cannot be.
    """

    name: str = "segments"
    source: str = "lengths given one by one"
    """Where its values come from."""
    unit: Literal["bits", "perplexity"] = "bits"
    """What is published of it."""
    batch_size: int = 1
    """Rows B; the text is cut into as many parts, which are read at the same time. Each begins
    with nothing remembered, or with warmup_len tokens of the part before it: what its first tokens
    cannot see changes their nats. Only if same_length limits what is seen, and the warm-up reaches
    as far back through all layers, does the number of rows change nothing."""
    tgt_len: int | None = 128
    """Tokens in a segment; None, all of the text are one."""
    mem_len: int | None = None
    """States remembered; None, as in training."""
    clamp_len: int | None = None
    """Greatest distance told apart; None, as in training."""
    same_length: EvalSameLength = None
    """How many states each query sees; None, as in training; all, that there are."""
    ext_len: int = 0
    """Tokens that a segment reads again before its own; they are scored once."""
    warmup_len: int = 0
    """Tokens that each row but the first reads before its own, unscored."""
    limit: int | None = None
    """Tokens scored at most, from the text's beginning; None, all."""
    rest: Literal["scored", "dropped"] = "scored"
    """What becomes of the last tokens when the rows cannot share them equally."""

    def __post_init__(self) -> None:
        for field, least in LEAST.items():
            value = getattr(self, field)
            require(value is None or value >= least, field, value, f"at least {least}")

    @property
    def lengths(self) -> EvalLengths:
        return EvalLengths(self.mem_len, self.clamp_len, self.same_length)

    def stream(self, tokens: Tokens) -> Stream:
        """Return a text in rows and segments.

        Raises:
            DataError: it has fewer than two tokens for each row.
        """
        n_token = len(tokens) if self.limit is None else min(len(tokens), self.limit + 1)
        if n_token < 2 * self.batch_size:
            needed = f"batch_size {self.batch_size:,} needs 2 in each row"
            raise DataError(f"the text has {n_token:,} tokens; {needed}")
        return Stream(
            tokens,
            self.batch_size,
            FixedLengths(self.tgt_len or n_token),
            warmup_len=self.warmup_len,
            ext_len=self.ext_len,
            n_token=n_token,
            drop_last=self.rest == "dropped",
        )


LEAST = {
    "batch_size": 1,
    "tgt_len": 1,
    "mem_len": 0,
    "clamp_len": 1,
    "ext_len": 0,
    "warmup_len": 0,
    "limit": 1,
}
"""The smallest value of each number."""


def published(
    source: str, unit: str, rows: int, tgt_len: int, mem_len: int, clamp_len: int | None, **more
) -> Protocol:
    """A published way to read: its last tokens are dropped, as by the original's iterator."""
    lengths = {"batch_size": rows, "tgt_len": tgt_len, "mem_len": mem_len, "clamp_len": clamp_len}
    rest = {"same_length": "mem_len", "rest": "dropped"} | more
    return Protocol(source=source, unit=unit, **lengths, **rest)


def windows(window: int) -> dict[str, int]:
    """Each token predicted from the last `window` tokens alone, none of which is remembered."""
    require(window >= 1, "window", window, "at least 1")
    return {"tgt_len": 1, "mem_len": 0, "ext_len": window - 1, "warmup_len": window}


def nvidia(tgt_len: int, mem_len: int, clamp_len: int) -> Protocol:
    """NVIDIA's: whole segments of the row before warm the memory; the first row starts cold."""
    warmup_len = -(-mem_len // tgt_len) * tgt_len
    changes = {"same_length": "mem_len+1", "warmup_len": warmup_len}
    source = "DeepLearningExamples, Transformer-XL, eval.py"
    return published(source, "perplexity", 16, tgt_len, mem_len, clamp_len, **changes)


TABLE = {
    "segments": Protocol(),
    "single-pass": Protocol(
        source="all in one segment", tgt_len=None, mem_len=0, limit=4096
    ),
    "sliding-window": Protocol(
        source="Al-Rfou et al. 2019", batch_size=32, limit=1000, **windows(512)
    ),
    "paper-enwik8-base": published("pytorch/run_enwik8_base.sh", "bits", 10, 80, 2100, 820),
    "paper-enwik8-large": published("pytorch/run_enwik8_large.sh", "bits", 10, 128, 3800, 1000),
    "paper-text8-base": published("pytorch/run_text8_base.sh", "bits", 10, 80, 2100, 820),
    "paper-text8-large": published("pytorch/run_text8_large.sh", "bits", 10, 128, 3800, 1000),
    "paper-wt103-base": published("pytorch/run_wt103_base.sh", "perplexity", 10, 64, 640, 400),
    "paper-wt103-large": published("pytorch/run_wt103_large.sh", "perplexity", 10, 128, 1600, 1000),
    "paper-lm1b-base": published("pytorch/run_lm1b_base.sh", "perplexity", 64, 32, 128, None),
    "paper-lm1b-large": published("pytorch/run_lm1b_large.sh", "perplexity", 8, 32, 128, None),
    "nvidia-wt103-base": nvidia(64, 640, 400),
    "nvidia-wt103-large": nvidia(128, 1600, 1000),
    "fairseq-wt103": published("examples/truncated_bptt", "perplexity", 1, 64, 640, 400),
}  # fmt: skip
ALIASES = {name.removesuffix("-base"): name for name in TABLE if name.endswith("-base")}
"""Shorter names for the base models' protocols."""

PROTOCOLS = {name: replace(protocol, name=name) for name, protocol in TABLE.items()}
"""Every protocol by name."""


def get_protocol(
    protocol: str = "segments",
    *,
    window: int | None = None,
    batch_size: int | None = None,
    tgt_len: int | None = None,
    mem_len: int | None = None,
    clamp_len: int | None = None,
    same_length: EvalSameLength = None,
    ext_len: int | None = None,
    warmup_len: int | None = None,
    limit: int | None = None,
    rest: Literal["scored", "dropped"] | None = None,
) -> Protocol:
    """A protocol by name, with what is given in place of its own.

    Args:
        protocol: One of the names in PROTOCOLS or ALIASES.
        window: Tokens that each token is predicted from, and nothing else: tgt_len 1, mem_len 0,
            warmup_len as long, ext_len one less.
        batch_size: Rows that the text is read in at the same time.
        tgt_len: Tokens in a segment.
        mem_len: States remembered.
        clamp_len: Greatest distance told apart.
        same_length: How many states each query sees; all, that there are.
        ext_len: Tokens that each segment reads again before its own, unscored.
        warmup_len: Tokens that each row but the first reads before its own, unscored.
        limit: Tokens scored at most, from the beginning of the text.
        rest: What becomes of the last tokens when the rows cannot share them equally.

    Raises:
        ValueError: there is no such protocol, or a length cannot be.
    """
    known = ", ".join([*PROTOCOLS, *ALIASES])
    name = ALIASES.get(protocol, protocol)
    require(name in PROTOCOLS, "protocol", protocol, f"one of {known}")
    given: dict[str, Any] = {
        "batch_size": batch_size,
        "tgt_len": tgt_len,
        "mem_len": mem_len,
        "clamp_len": clamp_len,
        "same_length": same_length,
        "ext_len": ext_len,
        "warmup_len": warmup_len,
        "limit": limit,
        "rest": rest,
    }
    changes = {} if window is None else windows(window)
    changes |= {field: value for field, value in given.items() if value is not None}
    return replace(PROTOCOLS[name], **changes)
