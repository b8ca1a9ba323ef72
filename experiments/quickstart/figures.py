"""Tables and figure of the quickstart's memory, from results.json alone."""

from experiments.results import Reading, Readings

OURS = Reading("memory", "mem_len 128")
TWICE = Reading("memory", "mem_len 256")
ZERO = Reading("memory", "mem_len 0")
ALONE = Reading("alone", "mem_len 0")
WINDOW = Reading("alone", "window")
CACHED = Reading("alone", "cached")
NAMES = {
    OURS: "memory of 128",
    TWICE: "the same with a memory of 256",
    ZERO: "the same with zero memory at evaluation",
    ALONE: "trained without memory",
    WINDOW: "the same by a sliding window, recomputed",
    CACHED: "the same by a sliding window, from kept keys",
}
CONTRASTS = {
    "memory against trained without memory": (OURS, ALONE),
    "memory against trained without memory by a sliding window": (OURS, WINDOW),
    "memory of 256 against the 128 of training": (TWICE, OURS),
    "memory against zero memory at evaluation": (OURS, ZERO),
    "sliding window against reading in segments": (WINDOW, ALONE),
    "sliding window from kept keys against computed again": (CACHED, WINDOW),
}
FIGURES = Readings(
    key="bits_per_byte",
    unit="bits per byte",
    margin=0.01,
    names=NAMES,
    contrasts=CONTRASTS,
    picture="quickstart",
    panels={"Python source": NAMES},
)
