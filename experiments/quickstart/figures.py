"""Tables and figure of the quickstart's memory, from results.json alone."""

from experiments.results import Readings

OURS, TWICE, ZERO = (("memory", f"mem_len {n}") for n in (128, 256, 0))
ALONE, WINDOW, CACHED = (("alone", way) for way in ("mem_len 0", "window", "cached"))
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
PANELS = {"Python source": NAMES}
FIGURES = Readings("bits_per_byte", "bits per byte", 0.01, NAMES, CONTRASTS, "quickstart", PANELS)
