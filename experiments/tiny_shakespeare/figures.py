"""Validation loss of the characters' models: figure, table, claims."""

from typing import Any

from experiments.common import (
    COLOURS,
    Claim,
    choose,
    find_results,
    load_records,
    open_figure,
    show_spread,
    spread,
    write_table,
)

NAMES = {
    "memory": "ours, memory 64",
    "plain": "ours, no memory",
    "recipe": "nanoGPT's recipe, no memory",
    "labml": "labml's, learned distances",
    "sinusoidal": "labml's, the paper's distances",
}
NANOGPT = 1.88
SOURCE = "nanoGPT, README, CPU example"


def main() -> None:
    """Draw curves.png, write table.md and samples.txt."""
    path = find_results(__file__)
    records = load_records(path)
    kinds = {kind: found for kind in NAMES if (found := choose(records, kind=kind))}
    with open_figure(path.with_name("curves.png")) as (axes,):
        for (kind, found), colour in zip(kinds.items(), COLOURS, strict=False):
            a_step = tokens_a_step(found[0]) / 1e6
            tokens = [(step + 1) * a_step for step in found[0]["curve"]["steps"]]
            points = zip(*(each["curve"]["val/nats"] for each in found), strict=True)
            means, errors = zip(*map(spread, points), strict=True)
            label = f"{NAMES[kind]} ({len(found)})"
            axes.errorbar(tokens, means, yerr=errors, fmt="o-", label=label, color=colour)
        axes.axhline(NANOGPT, color="gray", linestyle=":", label="nanoGPT, published")
        axes.set(xlabel="characters of training (millions)", ylabel="validation nats per character")
        axes.set_title("Tiny Shakespeare, 0.8M parameters (in parentheses: seeds)")
        axes.legend(frameon=False)
    write_table(path.with_name("table.md"), list_rows(kinds))
    samples = (f"--- {kind}\nROMEO:\n{found[0]['sample']}\n" for kind, found in kinds.items())
    path.with_name("samples.txt").write_text("\n".join(samples))


def tokens_a_step(record: dict[str, Any]) -> int:
    # labml's rows and segment are those of its config.
    options = record["options"]
    return options.get("data.batch_size", 32) * options.get("data.tgt_len", 2)


def list_rows(kinds: dict[str, list[dict[str, Any]]]) -> list[list[Any]]:
    rows = [["model", "parameters", "characters", "mem_len", "nats per character (seeds)"]]
    for kind, found in kinds.items():
        tokens = found[0]["options"]["trainer.max_steps"] * tokens_a_step(found[0])
        for mem_len in sorted(found[0]["nats_by_mem_len"], key=int):
            size, values = f"{found[0]['parameters']:,}", nats(found, mem_len)
            rows.append([NAMES[kind], size, f"{tokens:,}", mem_len, show_spread(values)])
    return rows


def nats(found: list[dict[str, Any]], mem_len: str) -> list[float]:
    return [each["nats_by_mem_len"][mem_len] for each in found]


def list_claims(records: dict[str, dict[str, Any]]) -> list[Claim]:
    claims = []
    for kind, mem_len, aim in (("memory", "64", 1.75), ("plain", "0", 1.88), ("recipe", "0", 1.88)):
        if found := choose(records, kind=kind):
            values = nats(found, mem_len)
            scale = f"{found[0]['parameters']:,} parameters, 1.5M characters; nanoGPT 0.80M"
            verdict = f"{'' if spread(values)[0] < aim else 'not '}below {aim}"
            name = f"tiny Shakespeare, validation nats, {NAMES[kind]}"
            claims.append(Claim(name, SOURCE, "1.88", show_spread(values), scale, verdict))
    return claims


if __name__ == "__main__":
    main()
