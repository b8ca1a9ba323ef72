"""Tables and figure of chorales, from results.json alone."""

from experiments.results import Reading, Readings

OURS = Reading("memory", "memory")
ZERO = Reading("memory", "zero memory")
ALONE = Reading("alone", "segments")
WINDOW = Reading("alone", "window")
CACHED = Reading("alone", "cached")
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
FIGURES = Readings(
    key="nats_per_note",
    unit="nats per note",
    margin=0.01,
    names=NAMES,
    contrasts=CONTRASTS,
    picture="music",
    panels={"Bach chorales": NAMES},
)
