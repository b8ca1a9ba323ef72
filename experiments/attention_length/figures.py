"""Tables and figure of memory at equal attention length, from results.json alone."""

from experiments.results import Readings

TEXTS = {"python_source": "Python source", "enwik8_prefix": "enwik8's prefix"}
OURS, ZERO = ("memory", "memory"), ("memory", "zero memory")
SEGMENT, WINDOW, CACHED = (("segment", way) for way in ("segments", "window", "cached"))
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


def find_key(text: str, reading: tuple[str, str]) -> tuple[str, str]:
    """Return kind and way of reading, as records have them."""
    net, way = reading
    return f"{text}, {net}", way


NAMES = {
    find_key(text, reading): f"{title}: {name}"
    for text, title in TEXTS.items()
    for reading, name in READINGS.items()
}
CONTRASTS = {
    f"{title}: {READINGS[OURS]} against {name}": (find_key(text, OURS), find_key(text, other))
    for text, title in TEXTS.items()
    for other, name in OTHERS.items()
}
PANELS = {
    title: {find_key(text, reading): name for reading, name in READINGS.items()}
    for text, title in TEXTS.items()
}
FIGURES = Readings(
    "bits_per_byte", "bits per byte", 0.01, NAMES, CONTRASTS, "attention_length", PANELS
)
