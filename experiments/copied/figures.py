"""Table, figure and claims of passages that come again, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

CURVES = {
    ("memory", "as trained"): "memory of 128, as trained",
    ("memory", "512"): "memory of 512",
    ("memory", "512, clamped"): "memory of 512, clamped at 191",
    ("shaw", "as trained"): "Shaw's positions, memory of 128",
    ("shaw", "512"): "Shaw's positions, memory of 512",
    ("alone", "window"): "trained without memory, window of 64",
}
MARGIN = 0.01  # nats that count as no difference


def collect_savings(records: results.Records, kind: str, way: str, gap: str) -> dict[int, float]:
    """Return by seed how much less the passage costs than in the control."""
    found = results.collect(records, "nats", kind=kind)
    nats = {seed: ways[way][gap] for seed, ways in found.items()}
    return {seed: each["control"] - each["copy"] for seed, each in nats.items()}


def list_gaps(records: results.Records) -> list[str]:
    """Return the gaps of all records; tests have two."""
    ways = [way for record in records.values() for way in record["nats"].values()]
    return sorted({gap for way in ways for gap in way}, key=int)


def list_curves(records: results.Records) -> dict[str, list[dict[int, float]]]:
    """Return what is saved, by seed, at each gap, by the name of the curve."""
    gaps, kinds = list_gaps(records), {record["kind"] for record in records.values()}
    return {
        title: [collect_savings(records, *key, gap) for gap in gaps]
        for key, title in CURVES.items()
        if key[0] in kinds
    }


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["nats saved, by tokens between", *list_gaps(records)]]
    for title, savings in list_curves(records).items():
        rows.append([title, *(results.format_spread(each.values()) for each in savings)])
    return rows


def draw(records: results.Records, folder: Path) -> None:
    """Draw the nats that are saved by the tokens between the passages."""
    curves, gaps = list_curves(records), [int(gap) for gap in list_gaps(records)]
    if not curves:
        return
    seeds = results.format_seeds(*(len(savings[0]) for savings in curves.values()))
    labels = {"xlabel": "tokens between the passages", "ylabel": "nats saved"}
    title = f"From how far back is a passage known? ({seeds})"
    with results.draw_figure(folder / "copied.png", title, 8, 4.4, **labels) as axes:
        for name, savings in curves.items():
            rows = list(zip(*(each.values() for each in savings), strict=True))
            results.plot_seeds(axes, gaps, rows, label=name)


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return rows of the hypotheses in experiments/README.md, as far as they were measured."""

    def save(kind: str, way: str, gap: str) -> dict[int, float]:
        return collect_savings(records, kind, way, gap)

    kinds, rows = {record["kind"] for record in records.values()}, {}
    if "memory" in kinds and "1024" in list_gaps(records):
        far = save("memory", "as trained", "384")
        long = save("memory", "512", "384")
        rows["known after 128 tokens"] = save("memory", "as trained", "128").values()
        rows["known after 256, which no layer sees"] = save("memory", "as trained", "256").values()
        rows["after 384 a memory of 512 knows more"] = results.subtract(long, far)
        if "shaw" in kinds:
            rows["after 384 memory of 512: more than with Shaw's positions"] = results.subtract(
                long, save("shaw", "512", "384")
            )
    return [make_claim(name, list(gains)) for name, gains in rows.items()]


def make_claim(name: str, gains: list[float]) -> results.Claim:
    shown = f"{results.format_spread(gains)} nats"
    scale = "1.4M parameters, 2M tokens"
    source = "paper, Section 4.3"
    return results.Claim(f"Passage: {name}", source, "no number", shown, scale, gains, MARGIN)


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
