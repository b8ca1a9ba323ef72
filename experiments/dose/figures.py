"""Table, figure and claims of memory's gain by training and by its length, from results.json."""

from pathlib import Path
from statistics import fmean
from typing import Any

from experiments import results

CHOSEN = {"memory": "as trained", "alone": "its better reading", "shaw": "as trained"}
READINGS = {
    "rival read in segments, as trained": "segments",
    "rival read by a window that moves by 8": "window",
}
"""Of the network without memory."""
TRAINED, LONG = "plain 64", "plain 256"
SAME_GAIN, SAME_LENGTH = 0.005, 0.002  # nats that count as no difference


def measure(record: dict[str, Any], way: str, split: str = "test") -> float:
    """Return the mean nats of the books of a split."""
    return fmean(record["nats"][split][way])


def choose_way(record: dict[str, Any]) -> str:
    """Return the way with the fewest nats on the validation books."""
    return min(record["nats"]["val"], key=lambda name: measure(record, name, "val"))


def collect_nats(records: results.Records, kind: str, dose: float) -> results.BySeed:
    """Return nats of the test books by seed: of memory as trained, of others as they read best."""
    found = results.select(records, kind=kind, dose=dose)
    ways = {r["seed"]: choose_way(r) if kind == "alone" else TRAINED for r in found}
    return {record["seed"]: measure(record, ways[record["seed"]]) for record in found}


def list_doses(records: results.Records) -> list[float]:
    return sorted({record["dose"] for record in records.values()})


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["network", "million tokens", "nats of the test books", "less with the best length"]]
    for kind, how in CHOSEN.items():
        for dose in list_doses(records):
            if not (nats := collect_nats(records, kind, dose)):
                continue
            gains = [] if kind == "alone" else list_length_gains(records, kind, dose)
            more = results.format_spread(gains) if gains else ""
            rows.append([f"{kind}, {how}", f"{dose:g}", results.format_spread(nats.values()), more])
    return rows


def list_length_gains(records: results.Records, kind: str, dose: float) -> list[float]:
    """Return the nats that the way chosen on the validation books saves on the test books.

    Empty after a dose that is read in segments and with the memory of training only.
    """
    found = results.select(records, kind=kind, dose=dose)
    found = [r for r in found if len(r["nats"]["val"]) > 2]
    return [measure(r, TRAINED) - measure(r, choose_way(r)) for r in found]


def collect_costs(records: results.Records, kind: str, dose: float) -> results.BySeed:
    """Return by seed the nats that four times the memory of training costs on the test books."""
    found = results.select(records, kind=kind, dose=dose)
    return {
        r["seed"]: measure(r, LONG) - measure(r, TRAINED)
        for r in found
        if LONG in r["nats"]["test"]
    }


def draw(records: results.Records, folder: Path) -> None:
    """Draw the nats that memory saves, by tokens of training and reading of the rival."""
    doses = [dose for dose in list_doses(records) if subtract_kinds(records, dose)]
    if not doses:
        return
    seeds = results.format_seeds(*(len(subtract_kinds(records, dose)) for dose in doses))
    labels = {"xlabel": "million tokens of training", "ylabel": "nats saved by memory"}
    title = f"Does memory's gain grow with training? ({seeds})"
    with results.draw_figure(folder / "dose.png", title, 7, 4, **labels) as axes:
        for name, way in READINGS.items():
            spreads = [results.spread(subtract_kinds(records, dose, way)) for dose in doses]
            means, deviations = zip(*spreads, strict=True)
            axes.errorbar(doses, means, yerr=deviations, markersize=4, capsize=3, label=name)
        axes.set_ylim(bottom=0)


def subtract_kinds(records: results.Records, dose: float, way: str | None = None) -> list[float]:
    """Return what memory saves at a dose, by seed: against the way of reading, or the better."""
    memory, alone = (collect_nats(records, kind, dose) for kind in ("memory", "alone"))
    if way:
        found = results.select(records, kind="alone", dose=dose)
        alone = {record["seed"]: measure(record, way) for record in found}
    return results.subtract(alone, memory)


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return rows of the hypotheses in experiments/README.md, as far as they were measured."""
    doses, rows = list_doses(records), []
    if not doses:
        return rows
    gains = {dose: subtract_kinds(records, dose) for dose in (doses[0], doses[-1])}
    # Shaw's positions were trained with fewer tokens than memory.
    shaw = [dose for dose in doses if results.select(records, kind="shaw", dose=dose)]
    costs = [collect_costs(records, kind, shaw[-1]) for kind in ("shaw", "memory") if shaw]
    found = [
        ("memory helps", doses[-1], gains[doses[-1]], SAME_GAIN),
        ("its gain grows with training", doses[-1], grow(*gains.values()), SAME_GAIN),
        (
            "the length and way of reading chosen on validation books help",
            doses[-1],
            list_length_gains(records, "memory", doses[-1]),
            SAME_LENGTH,
        ),
        (
            "four times the memory of training costs less than with Shaw's positions",
            shaw[-1] if shaw else 0,
            results.subtract(*costs) if costs else [],
            SAME_LENGTH,
        ),
    ]
    for name, dose, values, margin in found:
        if values:
            scale = f"1.4M parameters, {dose:g}M tokens of novels"
            shown = f"{results.format_spread(values)} nats saved"
            claim = (f"Dose: {name}", "paper, Section 4.1", "no number", shown, scale)
            rows.append(results.Claim(*claim, values, margin))
    return rows


def grow(first: list[float], last: list[float]) -> list[float]:
    """Return by how much a gain grows, by seed; nothing with one dose."""
    return [b - a for a, b in zip(first, last, strict=False)] if first is not last else []


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
