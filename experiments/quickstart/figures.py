"""Table, figure and claims of the quickstart's memory, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

READINGS = {
    ("memory", "mem_len 128"): "trained with memory 128",
    ("memory", "mem_len 256"): "the same network with twice the memory",
    ("memory", "mem_len 0"): "the same network without its memory",
    ("alone", "mem_len 0"): "trained without memory",
    ("alone", "window"): "the same, read by a window of 64 that moves by 8",
}
"""By kind of network and way of reading."""
XZ = {"after": "xz -9e after the training text", "alone": "xz -9e alone"}
MARGIN = 0.01  # bits per byte


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["read", "parameters", "bits per byte of the test text (seeds)"]]
    for (kind, reading), name in READINGS.items():
        if bits := collect_bits(records, kind, reading):
            size = results.select(records, kind=kind)[0]["parameters"]
            rows.append([name, f"{size:,}", results.format_spread(bits.values())])
    return rows + [[name, "", f"{records['xz'][way]:.3f}"] for way, name in XZ.items()]


def collect_bits(records: results.Records, kind: str, reading: str) -> dict[int, float]:
    return results.collect(records, "bits_per_byte", reading, kind=kind)


def draw(records: results.Records, folder: Path) -> None:
    """Draw bits per byte of each way of reading, and of xz."""
    bits = {name: collect_bits(records, *key).values() for key, name in READINGS.items()}
    seeds = results.format_seeds(*map(len, bits.values()))
    bits |= {name: [records["xz"][way]] for way, name in XZ.items()}
    title = f"What is memory worth to the quickstart? ({seeds})"
    results.draw_bits(
        folder / "quickstart.png", title, {n: each for n, each in bits.items() if each}
    )


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return rows: memory against none, a window, xz, and twice the memory."""
    ours, twice, _, alone, window = (collect_bits(records, *key) for key in READINGS)
    if not (ours and alone):
        return []
    xz = dict.fromkeys(ours, records["xz"]["after"])
    without = "memory beats a network trained without it"
    moving = "memory beats that network read by a window"
    [first, *_] = results.select(records, kind="memory")
    scale = f"{first['options']['trainer.max_steps']:,} steps, {first['parameters']:,} parameters"
    rows = [
        (without, "paper, Section 4", ours, alone, "ours trained without"),
        (moving, "paper, Section 4", ours, window, "at 8 times the work"),
        ("bits per byte", "xz -9e", ours, xz, "after the training text"),
        (
            "twice the memory of training helps",
            "paper, Section 4.1",
            twice,
            ours,
            "with that of training",
        ),
    ]
    return [compare(*row, scale) for row in rows]


def compare(
    name: str, source: str, ours: results.BySeed, theirs: results.BySeed, how: str, scale: str
) -> results.Claim:
    gains = results.subtract(theirs, ours)
    is_fixed = len(set(theirs.values())) == 1
    shown = (
        f"{next(iter(theirs.values())):.3f}" if is_fixed else results.format_spread(theirs.values())
    )
    gain = f"{results.format_spread(ours.values())}: {results.format_spread(gains)} less"
    return results.Claim(
        f"Quickstart: {name}", source, f"{shown}, {how}", gain, scale, gains, MARGIN
    )


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
