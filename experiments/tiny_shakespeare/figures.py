"""Tables and figure of tiny Shakespeare, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.contrasts import Contrast
from experiments.results import Readings, Records

PUBLISHED = 1.88
"""nats per character of nanoGPT's CPU example: the mean of 20 random batches of one run."""
OURS, ZERO, TWICE = (("memory", n) for n in ("64", "0", "128"))
PLAIN, RECIPE = ("plain", "0"), ("recipe", "0")
NATS = Readings(
    "nats_by_mem_len",
    "nats per character",
    0.01,
    {
        OURS: "Muon, memory of 64",
        ZERO: "the same, zero memory at evaluation",
        TWICE: "the same, memory of 128",
        PLAIN: "Muon, trained without memory",
        RECIPE: "AdamW as in nanoGPT, trained without memory",
    },
)
CONTRASTS = {
    "memory against trained without memory": (OURS, PLAIN),
    "memory of 128 against the 64 of training": (TWICE, OURS),
    "memory against zero memory at evaluation": (OURS, ZERO),
    "Muon against AdamW as in nanoGPT": (PLAIN, RECIPE),
}


def list_tables(records: Records) -> list[results.Rows]:
    batches = results.collect(records, "nats_of_batches", kind="recipe").values()
    rows = [["AdamW as in nanoGPT, 20 random batches", "", "", ""]] if batches else []
    rows = [[*row, results.format_spread(batches)] for row in rows]
    published = ["nanoGPT's README, 20 random batches", "", "", "", f"{PUBLISHED}"]
    return [[*NATS.list_rows(records), *rows, published]]


def list_contrasts(records: Records) -> list[Contrast]:
    return NATS.compare(records, CONTRASTS)


def draw(records: Records, folder: Path) -> None:
    """Draw validation nats by characters of training."""
    kinds = {"memory": "Muon, memory", "plain": "Muon", "recipe": "AdamW as in nanoGPT"}
    curves = {kind: results.collect(records, "curve", "val/nats", kind=kind) for kind in kinds}
    seeds = results.format_seeds(*map(len, curves.values()))
    labels = {"xlabel": "training characters (millions)"}
    labels |= {"ylabel": "nats per character of the validation text"}
    title = f"Tiny Shakespeare ({seeds})"
    with results.draw_figure(folder / "tiny_shakespeare.png", title, **labels) as axes:
        for kind, name in kinds.items():
            if found := results.select(records, kind=kind):
                options = found[0]["options"]
                million = options["data.batch_size"] * options["data.tgt_len"] / 1e6
                places = [(step + 1) * million for step in found[0]["curve"]["steps"]]
                results.plot_seeds(axes, places, curves[kind].values(), label=name)
