"""One rule for the result of a primary contrast; experiments/contrasts.md has it.

An interval is Student's t over the seeds. Where the documents of a text are scored one by one, a
bootstrap over documents and seeds may widen it. Fewer than three seeds are unclear.
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

CLEAR = 0.95  # level of an interval
LIKELY = 0.8
SEEDS = 3  # fewest of a test
MAJORITY = 0.8  # smallest share of the seeds on the likely side
DRAWS = 2000  # of the bootstrap
Interval = tuple[float, float]


@dataclass(frozen=True)
class Contrast:
    """Two networks, or two ways to read, that are compared."""

    name: str
    effects: Sequence[float]
    """Of each seed: above 0 where what is named first is better."""
    unit: str
    margin: float
    """An effect of at most this is none."""
    documents: Sequence[Sequence[float]] = ()
    """Of each seed, the effects of each document, where they are known."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.effects)

    @cached_property
    def interval(self) -> Interval | None:
        return find_interval(self, CLEAR)

    @cached_property
    def drawn_means(self) -> list[float]:
        """Means over drawn seeds and documents, in order; they take a while."""
        return sorted(draw_means(self.documents))

    @property
    def p_value(self) -> float:
        """Two-sided, of Student's t over the seeds; 1 for fewer than two seeds."""
        if len(self.effects) < 2:
            return 1.0
        error = statistics.stdev(self.effects) / math.sqrt(len(self.effects))
        if error == 0:
            return float(self.mean == 0)
        return 2 * t_tail(abs(self.mean) / error, len(self.effects) - 1)

    def count_seeds(self) -> str:
        """Return how many seeds are in favour of what is named first."""
        return f"{sum(effect > 0 for effect in self.effects)} of {len(self.effects)}"

    def format_effect(self) -> str:
        return f"{self.format(self.mean)} {self.unit}"

    def format_interval(self) -> str:
        return " to ".join(map(self.format, self.interval)) if self.interval else ""

    def format(self, value: float) -> str:
        return f"{value:+.1f}" if self.unit.startswith("%") else f"{value:+.3f}"


def judge_contrast(contrast: Contrast) -> str:
    """Return clear, likely, unclear or none, and whether the effect is below 0."""
    clear, likely = (find_interval(contrast, level) for level in (CLEAR, LIKELY))
    if len(contrast.effects) < SEEDS or clear is None or likely is None:
        return "unclear"
    if max(map(abs, clear)) <= contrast.margin:
        return "none"
    agree = statistics.fmean(effect * contrast.mean > 0 for effect in contrast.effects)
    for result, (low, high), least in (("clear", clear, 1.0), ("likely", likely, MAJORITY)):
        if low * high > 0 and agree >= least:
            return result if contrast.mean > 0 else f"{result}, against"
    return "unclear"


def list_kept(contrasts: Sequence[Contrast]) -> list[bool]:
    """Return of each contrast whether it is not 0 at CLEAR, corrected for all (Holm 1979)."""
    order = sorted(range(len(contrasts)), key=lambda n: contrasts[n].p_value)
    kept = [False] * len(contrasts)
    for rank, n in enumerate(order):
        if contrasts[n].p_value > (1 - CLEAR) / (len(contrasts) - rank):
            break
        kept[n] = True
    return kept


def find_interval(contrast: Contrast, level: float) -> Interval | None:
    """Return the interval of the mean effect; None for fewer than two seeds."""
    if len(contrast.effects) < 2:
        return None
    low, high = find_t_interval(contrast.effects, level)
    if contrast.documents:
        skipped = round((1 - level) / 2 * DRAWS)
        low = min(low, contrast.drawn_means[skipped])
        high = max(high, contrast.drawn_means[-1 - skipped])
    return low, high


def draw_means(values_SD: Sequence[Sequence[float]]) -> Iterator[float]:
    """Yield means over seeds and documents that are drawn with replacement."""
    draw = random.Random(0)
    n_document = len(values_SD[0])
    for _ in range(DRAWS):
        documents = draw.choices(range(n_document), k=n_document)
        seeds = draw.choices(values_SD, k=len(values_SD))
        yield statistics.fmean([values[d] for values in seeds for d in documents])


def find_t_interval(values: Sequence[float], level: float) -> Interval:
    low = 0.0
    high = 1e3
    while high - low > 1e-6:
        middle = (low + high) / 2
        is_inside = t_tail(middle, len(values) - 1) > (1 - level) / 2
        low, high = (middle, high) if is_inside else (low, middle)
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return mean - high * error, mean + high * error


def t_tail(t: float, degrees: int) -> float:
    """Return P(T > t) of Student's t with whole degrees (Abramowitz and Stegun, 26.7.3, 4)."""
    angle = math.atan(t / math.sqrt(degrees))
    is_odd = degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for n in range(1 + is_odd, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * n / (n + 1)
    inside = math.sin(angle) * total
    return (1 - (2 / math.pi * (angle + inside) if is_odd else inside)) / 2
