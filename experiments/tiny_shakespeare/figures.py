"""Tables and figure of tiny Shakespeare, from results.json alone."""

from experiments.results import Reading, Readings

OURS = Reading("memory", "64")
ZERO = Reading("memory", "0")
TWICE = Reading("memory", "128")
PLAIN = Reading("plain", "0")
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
FIGURES = Readings(
    key="nats_by_mem_len",
    unit="nats per character",
    margin=0.01,
    names=NAMES,
    contrasts=CONTRASTS,
    picture="tiny_shakespeare",
    panels={"Tiny Shakespeare": NAMES},
)
