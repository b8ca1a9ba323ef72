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
CLAIMS = {"memory": ("64", 1.75), "plain": ("0", PUBLISHED), "recipe": ("0", PUBLISHED)}
"""By kind: memory length in evaluation, and the nats to stay below."""


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["model", "parameters", "characters", "mem_len", "nats per character (seeds)"]]
    for kind, found in group_by_kind(records).items():
        tokens = found[0]["options"]["trainer.max_steps"] * tokens_per_step(found[0])
        size = f"{found[0]['parameters']:,}"
        for mem_len in sorted(found[0]["nats_by_mem_len"], key=int):
            nats = results.format_spread(select_nats(found, mem_len))
            rows.append([NAMES[kind], size, f"{tokens:,}", mem_len, nats])
    return rows


def group_by_kind(records: results.Records) -> dict[str, list[dict[str, Any]]]:
    return {kind: found for kind in NAMES if (found := results.select(records, kind=kind))}


def tokens_per_step(record: dict[str, Any]) -> int:
    # labml's batch size and segment length are in its config.
    options = record["options"]
    return options.get("data.batch_size", 32) * options.get("data.tgt_len", 2)


def select_nats(found: list[dict[str, Any]], mem_len: str) -> list[float]:
    return [each["nats_by_mem_len"][mem_len] for each in found]


def draw(records: results.Records, folder: Path) -> None:
    """Draw curves.png and write samples.txt."""
    kinds = group_by_kind(records)
    with results.open_figure(folder / "curves.png") as (axes,):
        for (kind, found), style in zip(kinds.items(), results.STYLES, strict=False):
            million = tokens_per_step(found[0]) / 1e6
            tokens = [(step + 1) * million for step in found[0]["curve"]["steps"]]
            nats = [each["curve"]["val/nats"] for each in found]
            results.plot_seeds(axes, tokens, nats, label=NAMES[kind], **style)
        axes.axhline(PUBLISHED, color="gray", linestyle=":", label="nanoGPT, published, at the end")
        axes.set(xlabel="training characters (millions)", ylabel="validation nats per character")
        seeds = results.format_seeds(*map(len, kinds.values()))
        results.label_figure(axes, f"Tiny Shakespeare: does memory help? ({seeds})")
    samples = (f"--- {kind}\nROMEO:\n{found[0]['sample']}\n" for kind, found in kinds.items())
    (folder / "samples.txt").write_text("\n".join(samples))


def list_claims(records: results.Records) -> list[results.Claim]:
    claims = []
    for kind, (mem_len, aim) in CLAIMS.items():
        if found := results.select(records, kind=kind):
            nats = select_nats(found, mem_len)
            scale = f"{found[0]['parameters']:,} parameters, 1.5M characters; nanoGPT 0.80M"
            verdict = f"{'' if results.spread(nats)[0] < aim else 'not '}below {aim}"
            name = f"Tiny Shakespeare, validation nats: {NAMES[kind]}"
            claims.append(
                results.Claim(
                    name, SOURCE, str(PUBLISHED), results.format_spread(nats), scale, verdict
                )
            )
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
