"""Tables and figure of tiny Shakespeare, from results.json alone."""

from experiments.results import Readings

OURS, ZERO, TWICE = (("memory", n) for n in ("64", "0", "128"))
PLAIN = ("plain", "0")
NAMES = {
    OURS: "memory of 64",
    ZERO: "the same with zero memory at evaluation",
    TWICE: "the same with a memory of 128",
    PLAIN: "trained without memory",
}
CONTRASTS = {
    "memory against trained without memory": (OURS, PLAIN),
    "memory of 128 against the 64 of training": (TWICE, OURS),
    "memory against zero memory at evaluation": (OURS, ZERO),
}
UNIT, PANELS = "nats per character", {"Tiny Shakespeare": NAMES}
FIGURES = Readings("nats_by_mem_len", UNIT, 0.01, NAMES, CONTRASTS, "tiny_shakespeare", PANELS)
