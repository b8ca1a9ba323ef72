"""Table, figure, samples and claims of tiny Shakespeare, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

NAMES = {
    "memory": "ours, memory 64",
    "plain": "ours, no memory",
    "recipe": "nanoGPT's recipe, no memory",
    "labml": "labml's, learned distances",
    "sinusoidal": "labml's, the paper's distances",
}
PUBLISHED = 1.88
SOURCE = "nanoGPT, README, CPU example"
CLAIMS = {
    "memory": ("64", "positions, initialization, optimizer and memory differ"),
    "plain": ("0", "positions, initialization and optimizer differ"),
    "recipe": ("0", "positions and initialization differ"),
}
"""By kind: memory length in evaluation, and what is not as in nanoGPT."""
BATCHES = "nats_of_batches"
MARGIN = 0.01  # Nats


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["model", "parameters", "characters", "mem_len", "nats per character (seeds)"]]
    for kind, first in find_first(records).items():
        tokens = first["options"]["trainer.max_steps"] * tokens_per_step(first)
        for mem_len in sorted(first["nats_by_mem_len"], key=int):
            nats = results.format_spread(collect_nats(records, kind, mem_len).values())
            rows.append([NAMES[kind], f"{first['parameters']:,}", f"{tokens:,}", mem_len, nats])
    return rows


def find_first(records: results.Records) -> dict[str, dict[str, Any]]:
    """Return the first record of each kind that has one."""
    return {kind: found[0] for kind in NAMES if (found := results.select(records, kind=kind))}


def tokens_per_step(record: dict[str, Any]) -> int:
    # labml's batch size and segment length are in its config.
    options = record["options"]
    return options.get("data.batch_size", 32) * options.get("data.tgt_len", 2)


def collect_nats(records: results.Records, kind: str, mem_len: str) -> dict[int, float]:
    return results.collect(records, "nats_by_mem_len", mem_len, kind=kind)


def draw(records: results.Records, folder: Path) -> None:
    """Draw curves.png and write samples.txt."""
    kinds = find_first(records)
    curves = {kind: results.collect(records, "curve", "val/nats", kind=kind) for kind in kinds}
    seeds = results.format_seeds(*map(len, curves.values()))
    title = f"Tiny Shakespeare: does memory help? ({seeds})"
    labels = {"xlabel": "training characters (millions)"}
    labels |= {"ylabel": "validation nats per character"}
    with results.draw_figure(folder / "curves.png", title, **labels) as axes:
        for kind, first in kinds.items():
            million = tokens_per_step(first) / 1e6
            tokens = [(step + 1) * million for step in first["curve"]["steps"]]
            results.plot_seeds(axes, tokens, curves[kind].values(), label=NAMES[kind])
        axes.axhline(PUBLISHED, color="gray", linestyle=":", label="nanoGPT, published, at the end")
    samples = (f"--- {kind}\nROMEO:\n{first['sample']}\n" for kind, first in kinds.items())
    (folder / "samples.txt").write_text("\n".join(samples))


def list_claims(records: results.Records) -> list[results.Claim]:
    claims, first = [], find_first(records)
    nats = {kind: collect_nats(records, kind, mem_len) for kind, (mem_len, _) in CLAIMS.items()}
    for kind, (_, changes) in CLAIMS.items():
        if ours := nats[kind].values():
            name = f"Tiny Shakespeare, validation nats: {NAMES[kind]}"
            size = f"{first[kind]['parameters']:,} parameters, theirs 0.80M"
            texts = f"{PUBLISHED}, of 20 random batches", results.format_spread(ours)
            scale, gains = f"{size}; 1.5M characters; {changes}", [PUBLISHED - n for n in ours]
            claims.append(results.Claim(name, SOURCE, *texts, scale, gains, MARGIN))
    recipes = results.select(records, kind="recipe")
    if batches := [each[BATCHES] for each in recipes if BATCHES in each]:
        texts = str(PUBLISHED), results.format_spread(batches)
        name = "Tiny Shakespeare: nanoGPT's recipe by its own evaluation, 20 random batches"
        scale, gains = CLAIMS["recipe"][1], [PUBLISHED - n for n in batches]
        claims.append(results.Claim(name, SOURCE, *texts, scale, gains, MARGIN))
    if saved := results.subtract(nats["plain"], nats["memory"]):
        texts = "paper, Section 4", "no number", f"{results.format_spread(saved)} nats saved"
        name = "Tiny Shakespeare: memory beats a network trained without it"
        claims.append(results.Claim(name, *texts, "equal parameters and steps", saved, MARGIN))
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
