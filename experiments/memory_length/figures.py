"""Table, figures and claims of the memory length, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.ablation.rows import POSITIONS
from experiments.memory_length.pairs import VALUES

TRAINED = "64"
"""Memory length in training of the models that are evaluated with others."""
RECALLED = 0.5
"""Share of right values from which on a seed counts as one that recalls them."""
MARGINS = {"read": 0.005, "pairs": 5}
"""Nats, percent of the values."""
READ_DOUBT = "one length, without `clamp_len` and `same_length`, which the paper's evaluation sets"


def list_rows(records: results.Records) -> list[list[str]]:
    lengths = list_lengths(records)
    rows = [["nats per subword, by mem_len at evaluation", *lengths]]
    for label, nats in collect_schemes(records).items():
        columns = ([each[length] for each in nats.values()] for length in lengths)
        rows.append([f"positions: {label}", *(results.format_spread(each) for each in columns)])
    return rows


def list_lengths(records: results.Records) -> list[str]:
    return sorted(results.select(records, kind="read")[0]["nats"], key=int)


def collect_schemes(records: results.Records) -> dict[str, results.BySeed]:
    """Return nats by memory length and seed of each position scheme."""
    found = {
        label: results.collect(records, "nats", kind="read", positions=positions)
        for positions, label in POSITIONS.items()
    }
    return {label: nats for label, nats in found.items() if nats}


def draw(records: results.Records, folder: Path) -> None:
    figures = {"read": draw_longer, "pairs": draw_recall}
    names = {"read": "read.png", "pairs": "pairs.png"}
    for kind, draw_kind in figures.items():
        if results.select(records, kind=kind):
            draw_kind(records, folder / names[kind])


def draw_longer(records: results.Records, path: Path) -> None:
    """Draw nats by memory length at evaluation."""
    schemes, lengths = collect_schemes(records), list_lengths(records)
    seeds = results.format_seeds(*map(len, schemes.values()))
    title = f"Do memories longer than in training help? ({seeds})"
    xlabel = f"mem_len at evaluation ({TRAINED} in training)"
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
    return [*claim_longer(records), *claim_recall(records)]


def claim_longer(records: results.Records) -> list[results.Claim]:
    """Return a row for each position scheme: nats saved by the longest memory."""
    claims = []
    for label, by_seed in collect_schemes(records).items():
        if not (found := [nats for nats in by_seed.values() if TRAINED in nats]):
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
