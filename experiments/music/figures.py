"""Table, claims and a picture of the notes of a chorale and its continuation, from results.json."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from experiments import results

LABELS = {
    ("memory", "memory"): "memory of 256, as trained",
    ("memory", "robbed"): "the same without its memory",
    ("alone", "segments"): "trained without memory, in segments, as trained",
    ("alone", "window"): "trained without memory, a window that moves by 8",
}
SAME = 0.01  # nats per note that count as no difference
BEATS, STEPS = 4, 4
"""Of a bar (of the pieces in common time), and of a beat, as chorales.py has them."""


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["network and reading", "nats per note of the test pieces"]]
    for (kind, way), label in LABELS.items():
        if nats := collect_nats(records, kind, way):
            rows.append([label, results.format_spread(nats.values())])
    return rows


def collect_nats(records: results.Records, kind: str, way: str) -> results.BySeed:
    return results.collect(records, "nats_per_note", way, kind=kind)


def draw(records: results.Records, folder: Path) -> None:
    """Draw the notes of the prompt and of the continuation: pitch by time in bars."""
    if "continuation" not in records:
        return
    prompt, new = (records["continuation"][name] for name in ("prompt", "new"))
    title, labels = "How does a chorale go on? (1 seed)", {"xlabel": "bar", "ylabel": "MIDI pitch"}
    with results.draw_figure(folder / "music.png", title, 10, 4, **labels) as axes:
        notes = [*find_notes([*prompt, *new])]
        n_given = len([*find_notes(prompt)])
        for n, part in enumerate((notes[:n_given], notes[n_given:])):
            bars = ([float(note[at] / BEATS) for note in part] for at in (0, 1))
            style = {"linewidth": 4, "color": results.COLOURS[n]}
            label = ("given", "generated")[n]
            axes.hlines([pitch for _, _, pitch in part], *bars, label=label, **style)


def find_notes(names: Iterable[str]) -> Iterator[tuple[Fraction, Fraction, int]]:
    """Yield begin, end (in beats) and pitch of each complete note of REMI tokens."""
    bar, position, pitch = -1, Fraction(0), None
    for name in names:
        kind, _, value = name.partition("_")
        if kind == "Bar":
            bar, position = bar + 1, Fraction(0)
        elif kind == "Position":
            position = Fraction(int(value), STEPS)
        elif kind == "Pitch":
            pitch = int(value)
        elif kind == "Duration" and pitch is not None:
            beats, steps, parts = map(int, value.split("."))
            begin = bar * BEATS + position
            yield begin, begin + beats + Fraction(steps, parts), pitch
            pitch = None


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return rows: memory against each reading of the network that was trained without."""
    ours, rows = collect_nats(records, "memory", "memory"), []
    for way, shown in {"segments": "in segments", "window": "by a window"}.items():
        theirs = collect_nats(records, "alone", way)
        if gains := results.subtract(theirs, ours):
            [first, *_] = results.select(records, kind="memory")
            scale = f"{first['parameters'] / 1e6:.1f}M parameters, chorales"
            texts = "no number", f"{results.format_spread(gains)} nats per note saved"
            name = f"Music: memory helps, the rival read {shown}"
            rows.append(results.Claim(name, "paper, Section 4.1", *texts, scale, gains, SAME))
    return rows


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
