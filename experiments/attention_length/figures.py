"""Tables and figure of memory at equal attention length, from results.json alone."""

from experiments.results import Reading, Readings

TEXTS = {"python_source": "Python source", "enwik8_prefix": "enwik8's prefix"}
OURS = Reading("memory", "memory")
ZERO = Reading("memory", "zero memory")
SEGMENT = Reading("segment", "segments")
WINDOW = Reading("segment", "window")
CACHED = Reading("segment", "cached")
READINGS = {
    OURS: "memory of 128 and segments of 64",
    ZERO: "the same with zero memory at evaluation",
    SEGMENT: "segments of 192, trained without memory",
    WINDOW: "the same by a sliding window, recomputed",
    CACHED: "the same by a sliding window, from kept keys",
}
OTHERS = {
    WINDOW: "a sliding window of 192",
    CACHED: "a sliding window of 128 from kept keys",
    SEGMENT: "segments of 192",
    ZERO: "zero memory at evaluation",
}


def of_text(text: str, reading: Reading) -> Reading:
    """Return a reading of this text: the kinds of records begin with their text."""
    return Reading(f"{text}, {reading.kind}", reading.way)


NAMES = {
    of_text(text, reading): f"{title}: {name}"
    for text, title in TEXTS.items()
    for reading, name in READINGS.items()
}
CONTRASTS = {
    f"{title}: {READINGS[OURS]} against {name}": (of_text(text, OURS), of_text(text, other))
    for text, title in TEXTS.items()
    for other, name in OTHERS.items()
}
PANELS = {
    title: {of_text(text, reading): name for reading, name in READINGS.items()}
    for text, title in TEXTS.items()
}
FIGURES = Readings(
    key="bits_per_byte",
    unit="bits per byte",
    margin=0.01,
    names=NAMES,
    contrasts=CONTRASTS,
    picture="attention_length",
    panels=PANELS,
)
