"""Table, figures and claims of the memory length, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.ablation.rows import POSITIONS
from experiments.memory_length.pairs import VALUES

PUBLISHED = {
    "recurrence_ours_full": (700, 600, 500), "recurrence_shaw_full": (400, 400, 300),
    "alone_ours_full": (300, 300, 300), "alone_al_rfou_half": (128, 128, 128),
}  # fmt: skip
"""RECL in Table 8, for r of 0.1, 0.5 and 1."""
SHARES = (0.1, 0.5, 1.0)
NAMES = {
    "recurrence_ours_full": "recurrence, the paper's positions",
    "recurrence_shaw_full": "recurrence, Shaw",
    "alone_ours_full": "no recurrence, the paper's positions",
    "alone_al_rfou_half": "no recurrence, Al-Rfou",
}
TRAINED = "64"
"""Memory length in training of the models that are evaluated with others."""
RECALLED = 0.5
"""Share of right values from which on a seed counts as one that recalls them."""
MARGINS = {"recl": 8, "read": 0.005, "pairs": 5}
"""Subwords, nats, percent of the values."""
RECL_DOUBT = "unrelated tokens in place of the added ones gain as much (`recl` now measures them)"
READ_DOUBT = "one length, without `clamp_len` and `same_length`, which the paper's evaluation sets"


def list_rows(records: results.Records) -> list[list[str]]:
    rows = [["RECL, without its control", *(f"r = {share:g} (paper)" for share in SHARES)]]
    for model, theirs in PUBLISHED.items():
        ours = [collect_recl(records, model, share).values() for share in SHARES]
        cells = zip(ours, theirs, strict=True)
        rows.append(
            [NAMES[model], *(f"{results.format_spread(o, 0)} ({t})" for o, t in cells if o)]
        )
    return rows


def collect_recl(records: results.Records, model: str, share: float) -> dict[int, int]:
    """Return the RECL of each seed."""
    return {
        seed: row["recl"]
        for seed, rows in results.collect(records, "rows", kind="recl").items()
        for row in rows
        if (row["model"], row["r"]) == (model, share)
    }


def draw(records: results.Records, folder: Path) -> None:
    figures = {"recl": draw_contexts, "read": draw_longer, "pairs": draw_recall}
    names = {"recl": "contexts.png", "read": "read.png", "pairs": "pairs.png"}
    for kind, draw_kind in figures.items():
        if results.select(records, kind=kind):
            draw_kind(records, folder / names[kind])


def draw_contexts(records: results.Records, path: Path) -> None:
    """Draw nats by the number of tokens before each prediction."""
    found = results.select(records, kind="recl")
    title = f"How much context does a model use? ({results.format_seeds(len(found))})"
    labels = {"xlabel": "context of each prediction (subwords)", "ylabel": "nats per subword"}
    with results.draw_figure(path, title, **labels) as axes:
        for model, label in NAMES.items():
            nats = [record["nats"][model] for record in found]
            results.plot_seeds(axes, found[0]["contexts"], nats, label=label)


def draw_longer(records: results.Records, path: Path) -> None:
    """Draw nats by memory length at evaluation."""
    schemes = {
        label: nats
        for positions, label in POSITIONS.items()
        if (nats := results.collect(records, "nats", kind="read", positions=positions))
    }
    seeds = results.format_seeds(*map(len, schemes.values()))
    title = f"Do memories longer than in training help? ({seeds})"
    xlabel = f"mem_len at evaluation ({TRAINED} in training)"
    lengths = sorted(results.select(records, kind="read")[0]["nats"], key=int)
    with results.draw_figure(path, title, xlabel=xlabel, ylabel="nats per subword") as axes:
        for label, by_seed in schemes.items():
            rows = [[nats[n] for n in lengths] for nats in by_seed.values()]
            results.plot_seeds(axes, range(len(lengths)), rows, label=f"positions: {label}")
        axes.set_xticks(range(len(lengths)), lengths)


def draw_recall(records: results.Records, path: Path) -> None:
    """Draw the share of recalled values by distance; seeds learn to recall, or not: no mean."""
    pairs = results.select(records, kind="pairs")
    nearest = [row["nearest"] for row in pairs[0]["rows"]]
    title = (
        f"How far back are values recalled? (segments of {pairs[0]['segment']}; a line per seed)"
    )
    labels = {"xlabel": "distance to the value (tokens)", "ylabel": "values recalled (%)"}
    with results.draw_figure(path, title, **labels) as axes:
        for mem_len, style in zip(list_mem_lens(records), results.STYLES, strict=False):
            style = style | {"label": f"trained with mem_len {mem_len}"}
            for record in results.select(records, kind="pairs", mem_len=mem_len):
                shares = [100 * row["accuracy"] for row in record["rows"]]
                results.plot_seeds(axes, range(len(nearest)), [shares], **style)
                style.pop("label", None)
        axes.axhline(100 / VALUES, color="gray", linestyle=":", label="guessing")
        axes.set_xticks(range(len(nearest)), [f"{low}-{2 * low - 1}" for low in nearest])


def list_mem_lens(records: results.Records) -> list[int]:
    return sorted({record["mem_len"] for record in results.select(records, kind="pairs")})


def list_claims(records: results.Records) -> list[results.Claim]:
    return [*claim_recl(records), *claim_longer(records), *claim_recall(records)]


def claim_recl(records: results.Records) -> list[results.Claim]:
    """Return one row: is RECL at r = 0.1 longer with recurrence and the paper's positions?"""
    recl = {model: collect_recl(records, model, SHARES[0]) for model in PUBLISHED}
    if not all(recl.values()):
        return []
    longest, *_, shortest = recl.values()
    ours = (f"{NAMES[m]} {results.format_spread(recl[m].values(), 0)}" for m in PUBLISHED)
    theirs = (f"{NAMES[m]} {lengths[0]}" for m, lengths in PUBLISHED.items())
    scale = f"{results.select(records, kind='recl')[0]['positions']} positions, segments of 64"
    texts = "Effective context length, RECL at r 0.1", "paper, Table 8"
    texts = *texts, "; ".join(theirs), "; ".join(ours), scale
    gains = results.subtract(longest, shortest)
    return [results.Claim(*texts, gains, MARGINS["recl"], RECL_DOUBT)]


def claim_longer(records: results.Records) -> list[results.Claim]:
    """Return a row for each position scheme: nats saved by the longest memory."""
    claims = []
    for positions, label in POSITIONS.items():
        by_seed = results.collect(records, "nats", kind="read", positions=positions).values()
        if not (found := [nats for nats in by_seed if TRAINED in nats]):
            continue
        longest = max(found[0], key=int)
        saved = [nats[TRAINED] - nats[longest] for nats in found]
        name = f"Memory of {int(longest):,} after training with {TRAINED}, positions: {label}"
        texts = "longer memories at evaluation help", f"{results.format_spread(saved)} nats saved"
        texts = name, "paper, Section 4.1", *texts, "subwords"
        claims.append(results.Claim(*texts, saved, MARGINS["read"], READ_DOUBT))
    return claims


def claim_recall(records: results.Records) -> list[results.Claim]:
    """Return a row for each memory length: recall at the longest distance within it."""
    claims, guessing = [], 100 / VALUES
    for mem_len in list_mem_lens(records):
        by_seed = results.collect(records, "rows", kind="pairs", mem_len=mem_len).values()
        within = [[row for row in rows if 2 * row["nearest"] <= mem_len] for rows in by_seed]
        if not within[0]:
            continue
        shares, near = [100 * rows[-1]["accuracy"] for rows in within], within[0][-1]["nearest"]
        name = f"Values recalled from {near} to {2 * near - 1} tokens ago, mem_len {mem_len}"
        seeds = f"{sum(share >= 100 * RECALLED for share in shares)} of {len(shares)} seeds"
        ours = f"{seeds} recall them: {', '.join(f'{share:.0f}' for share in shares)} %"
        texts = "none", f"guessing: {guessing:.1f} %", ours, "2 layers of 64, 1,500 steps"
        gains = [share - guessing for share in shares]
        claims.append(results.Claim(name, *texts, gains, MARGINS["pairs"]))
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
