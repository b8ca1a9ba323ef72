"""Table, figure and claims of recurrence with chosen learning rates, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results
from experiments.ablation.rows import ROWS, SHUFFLED

READINGS = {"segments": "in segments, as trained", "best": "with the best attention length"}
COMPARISONS = {
    "recurrence helps": ("memory", "alone"),
    "recurrence helps, Shaw's positions": ("shaw memory", "shaw alone"),
    "the paper's positions help more than Shaw's": ("memory", "shaw memory"),
    "recurrence helps on shuffled lines": ("shuffled memory", "shuffled alone"),
    "recurrence helps, equal memory and tokens": ("memory", "long, equal tokens"),
    "recurrence helps, equal memory and updates": ("memory", "long, equal updates"),
}
"""Claims: the better kind by the paper, and the other."""
ROW_NAMES = {
    "memory": "recurrence_ours_full",
    "alone": "alone_ours_full",
    "shaw memory": "recurrence_shaw_full",
    "shaw alone": "alone_shaw_full",
    "long, equal tokens": "alone_ours_full_176",
    "long, equal updates": "alone_ours_full_176",
    "shuffled memory": "shuffled_recurrence_ours",
    "shuffled alone": "shuffled_alone_ours",
}
"""The paper's row of each kind."""
BY_NAME = {row.name: row for row in (*ROWS, *SHUFFLED)}
DOUBTS = {
    "recurrence helps, equal memory and tokens": (
        "at equal tokens the longer segments had 2,036 updates, recurrence 2,800"
    )
}
"""Comparisons that decide the sign by themselves."""
KINDS = dict.fromkeys(kind for pair in COMPARISONS.values() for kind in pair)
MARGIN = 1.0  # percent of perplexity
CONTEXT_CLAIMS = {
    "with recurrence than without": ("memory", "alone", "RECL of 700 and 300 tokens"),
    "with the paper's positions than with Shaw's": (
        "memory", "shaw memory", "RECL of 700 and 400 tokens"
    ),
}  # fmt: skip
"""Claims of context: the better kind by the paper, the other, and the paper's lengths."""
NAMES = {"memory": "memory", "shaw memory": "memory, Shaw's positions", "alone": "no memory"}
SHARE, STEP, CONTEXT_MARGIN = 0.1, (64, 128), 0.5
"""Hardest positions, the step of context that claims compare, and percent of perplexity."""


def list_rows(records: results.Records) -> list[list[Any]]:
    head = ["network", "learning rate", "tokens", "attention lengths", "perplexity in segments"]
    rows = [[*head, "with the best length"]]
    for kind in KINDS:
        if found := results.select(records, kind=kind):
            cells = [kind, f"{found[0]['rate']:g}", f"{count_tokens(found[0]):,}"]
            lengths = sorted({record["attention_len"] for record in found})
            cells += [", ".join(str(length) for length in lengths)]
            values = ([each[way] for each in found] for way in READINGS)
            rows.append(cells + [results.format_spread(each, 2) for each in values])
    return rows


def compare(records: results.Records, name: str, way: str) -> list[float]:
    """Return by how many percent the better kind's perplexity is less, by seed."""
    better, worse = (results.collect(records, way, kind=kind) for kind in COMPARISONS[name])
    return results.percent_less(better, worse)


def draw(records: results.Records, folder: Path) -> None:
    draw_comparisons(records, folder / "recurrence.png")
    if found := results.select(records, kind="contexts"):
        draw_contexts(records, found[0]["gains"], folder / "contexts.png")


def draw_contexts(records: results.Records, gains: list[dict[str, Any]], path: Path) -> None:
    """Draw what each doubling of the context gains a network, less what unrelated tokens do."""
    steps = sorted({(row["context"], row["longer"]) for row in gains})
    seeds = results.format_seeds(len(results.select(records, kind="contexts")))
    title, label = (
        f"How far back does context help? ({seeds})",
        "gain (%) less that of unrelated tokens",
    )
    with results.draw_figure(path, title, 8, 4, xlabel="tokens", ylabel=label) as axes:
        for kind, name in NAMES.items():
            columns = [[*collect_gains(records, kind, step).values()] for step in steps]
            rows = [*zip(*columns, strict=True)]
            results.plot_seeds(axes, range(len(steps)), rows, label=name)
        axes.set_xticks(range(len(steps)), [f"{short + 1} to {long}" for short, long in steps])
        axes.axhline(0, color="black", linewidth=0.8)


def collect_gains(records: results.Records, kind: str, step: tuple[int, int]) -> results.BySeed:
    """Return by seed the percent that a step of context gains, less those of its control."""
    return {
        seed: 100 * (row["gain"] - row["control"])
        for seed, rows in results.collect(records, "gains", kind="contexts").items()
        for row in rows
        if (row["model"], row["r"], row["context"], row["longer"]) == (kind, SHARE, *step)
    }


def draw_comparisons(records: results.Records, path: Path) -> None:
    """Draw the gain of each comparison by the way of reading."""
    names = [name for name in COMPARISONS if compare(records, name, "best")]
    if not names:
        return
    seeds = results.format_seeds(*(len(compare(records, name, "best")) for name in names))
    title = f"Does recurrence help, with chosen rates? ({seeds})"
    label = "% less perplexity (mean ± standard deviation)"
    with results.draw_figure(path, title, 9, 0.6 * len(names) + 1.6, xlabel=label) as axes:
        for shift, (way, shown) in zip((-0.1, 0.1), READINGS.items(), strict=True):
            gains = [results.spread(compare(records, name, way)) for name in names]
            means, deviations = zip(*gains, strict=True)
            places = [n + shift for n in range(len(names))]
            axes.errorbar(means, places, xerr=deviations, fmt="o", capsize=3, label=shown)
        published = [published_gain(name, "best") for name in names]
        axes.plot(published, range(len(names)), "D", fillstyle="none", label="paper, best length")
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return a row for each comparison and way of reading, as far as they were measured."""
    rows = []
    for name, pair in COMPARISONS.items():
        for way, shown in READINGS.items():
            if gains := compare(records, name, way):
                texts = f"{published_gain(name, way):.1f} %", f"{results.format_spread(gains, 1)} %"
                table = max(BY_NAME[ROW_NAMES[kind]].table for kind in pair)
                names = f"Recurrence: {name}, read {shown}", f"paper, Table {table}"
                more = describe_scale(records, pair), gains, MARGIN, DOUBTS.get(name, "")
                rows.append(results.Claim(*names, *texts, *more))
    return [*rows, *claim_contexts(records)]


def published_gain(name: str, way: str) -> float:
    """Return the paper's gain in percent, of networks read as trained or as they are best."""
    place = list(READINGS).index(way)
    better, worse = (BY_NAME[ROW_NAMES[kind]].published[place] for kind in COMPARISONS[name])
    return 100 * (1 - better / worse)


def describe_scale(records: results.Records, pair: tuple[str, str]) -> str:
    """Return the size of the networks, their tokens, and the rates, of which two were smaller."""
    found = [results.select(records, kind=kind)[0] for kind in pair]
    tokens = dict.fromkeys(f"{count_tokens(record) / 1e6:.1f}M" for record in found)
    rates = dict.fromkeys(f"{record['rate']:g}" for record in found)
    size = f"{found[0]['parameters'] / 1e6:.2f}M parameters, {' and '.join(tokens)} tokens"
    return f"{size}, rate {' and '.join(rates)}: the largest of three was best"


def count_tokens(record: dict[str, Any]) -> int:
    options = record["options"]
    size = options["data.batch_size"] * options["data.tgt_len"]
    return size * options["trainer.max_steps"]


def claim_contexts(records: results.Records) -> list[results.Claim]:
    """Return a row for each pair of kinds: whose far tokens help more, less their controls."""
    rows = []
    for name, (better, worse, theirs) in CONTEXT_CLAIMS.items():
        ours, others = (collect_gains(records, kind, STEP) for kind in (better, worse))
        if gains := results.subtract(ours, others):
            shown = f"{results.format_spread(ours.values(), 2)} %"
            shown += f" and {results.format_spread(others.values(), 2)} % less perplexity by them"
            name = f"Recurrence: tokens {STEP[0] + 1} to {STEP[1]} back help more {name}"
            scale = "the hardest tenth of positions, less unrelated tokens"
            texts = name, "after the paper's Table 8", theirs, shown, scale
            rows.append(results.Claim(*texts, gains, CONTEXT_MARGIN))
    return rows


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
