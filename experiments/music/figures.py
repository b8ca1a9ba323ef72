"""Tables and figure of chorales, from results.json alone."""

from experiments.results import Readings

OURS, ZERO = ("memory", "memory"), ("memory", "zero memory")
ALONE, WINDOW, CACHED = (("alone", way) for way in ("segments", "window", "cached"))
NAMES = {
    OURS: "memory of 256",
    ZERO: "the same with zero memory at evaluation",
    ALONE: "trained without memory",
    WINDOW: "the same by a sliding window, recomputed",
    CACHED: "the same by a sliding window, from kept keys",
}
CONTRASTS = {
    "memory against trained without memory": (OURS, ALONE),
    "memory against trained without memory by a sliding window": (OURS, WINDOW),
    "memory against zero memory at evaluation": (OURS, ZERO),
    "sliding window against reading in segments": (WINDOW, ALONE),
    "sliding window from kept keys against computed again": (CACHED, WINDOW),
}
PANELS = {"Bach chorales": NAMES}
FIGURES = Readings("nats_per_note", "nats per note", 0.01, NAMES, CONTRASTS, "music", PANELS)
