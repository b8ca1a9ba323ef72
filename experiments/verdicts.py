"""One rule for every verdict: t tests over the seeds of a claim, corrected by Holm for its table.

Three seeds or more, otherwise "one seed" or "two seeds". "holds" or "does not hold": the mean gain
differs from 0. "no difference": it lies within ± `margin` (two one-sided tests). Otherwise "not
decided", with the interval of the mean; and so if there is a reason to doubt what was compared.
Level 5 %, two-sided; p-values are Holm's over the rows that a folder contributes to the table
"ours, theirs".
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.results import Claim

LEVEL, SEEDS = 0.05, 3
FEW = {0: "no seed", 1: "one seed", 2: "two seeds"}
RANKS = {"does not hold": 0, "no difference": 0, "holds": 2}
"""0: the claim fails; 1, all others: undecided; 2: it holds."""


@dataclass(frozen=True)
class Verdict:
    """A verdict with the p-value that decided it; 1 without a test."""

    word: str
    p: float = 1.0
    doubt: str = ""
    interval: tuple[float, float] | None = None
    """Of the mean gain, where nothing is decided."""

    @property
    def rank(self) -> int:
        return RANKS.get(self.word, 1)

    def __str__(self) -> str:
        shown = "p < 0.001" if self.p < 0.001 else f"p {self.p:.3f}"
        word = self.word if self.p == 1 else f"{self.word}, {shown}"
        word += f": {self.doubt}" if self.doubt else ""
        if self.interval:
            word += " (95 % interval {:.3g} to {:.3g})".format(*self.interval)
        return word


def judge(claims: Sequence[Claim]) -> list[Verdict]:
    """Return the verdict of each claim of one table."""
    differs = correct_by_holm(test_difference(claim.gains) for claim in claims)
    equals = correct_by_holm(test_equivalence(claim.gains, claim.margin) for claim in claims)
    return [decide(*each) for each in zip(claims, differs, equals, strict=True)]


def decide(claim: Claim, p_differs: float | None, p_equals: float | None) -> Verdict:
    if p_differs is None or p_equals is None:
        return Verdict(FEW[len(claim.gains)], doubt=claim.doubt)
    if claim.doubt:
        return Verdict("not decided", doubt=claim.doubt, interval=find_interval(claim.gains))
    if claim.is_same:
        p_values = {"holds": p_equals, "does not hold": p_differs}
    else:
        helps = statistics.fmean(claim.gains) > 0
        p_values = {"holds" if helps else "does not hold": p_differs, "no difference": p_equals}
    verdicts = [Verdict(word, p) for word, p in p_values.items() if p <= LEVEL]
    undecided = Verdict("not decided", p_differs, interval=find_interval(claim.gains))
    return verdicts[0] if verdicts else undecided


def correct_by_holm(p_values: Iterable[float | None]) -> list[float | None]:
    """Return Holm's adjusted p-values; a row that was not tested (None) does not count."""
    adjusted = list(p_values)
    tested = sorted((p, n) for n, p in enumerate(adjusted) if p is not None)
    largest = 0.0
    for done, (p, n) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - done)))
        adjusted[n] = largest
    return adjusted


def test_difference(gains: Sequence[float]) -> float | None:
    """Return the two-sided p-value of a mean of 0; None for fewer than three values."""
    if len(gains) < SEEDS:
        return None
    return 2 * t_tail(abs(t_statistic(gains)), len(gains) - 1)


def test_equivalence(gains: Sequence[float], margin: float) -> float | None:
    """Return the p-value of a mean outside ± margin: the larger of two one-sided tests."""
    if len(gains) < SEEDS:
        return None
    above, below = [gain + margin for gain in gains], [margin - gain for gain in gains]
    return t_tail(min(t_statistic(above), t_statistic(below)), len(gains) - 1)


def find_interval(gains: Sequence[float]) -> tuple[float, float]:
    """Return the interval of a mean at 95 %, of this claim alone (not corrected by Holm)."""
    low, high = 0.0, 1e3
    while high - low > 1e-6:
        middle = (low + high) / 2
        is_inside = t_tail(middle, len(gains) - 1) > LEVEL / 2
        low, high = (middle, high) if is_inside else (low, middle)
    mean, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
    return mean - high * error, mean + high * error


def t_statistic(values: Sequence[float]) -> float:
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return mean / error if error else math.copysign(math.inf, mean) if mean else 0.0


def t_tail(t: float, degrees: int) -> float:
    """Return P(T > t) of Student's t with whole degrees (Abramowitz and Stegun, 26.7.3, 4)."""
    angle = math.atan(t / math.sqrt(degrees))
    is_odd = degrees % 2
    term, total = (math.cos(angle) if is_odd else 1.0), 0.0
    for n in range(1 + is_odd, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * n / (n + 1)
    inside = math.sin(angle) * total
    return (1 - (2 / math.pi * (angle + inside) if is_odd else inside)) / 2
