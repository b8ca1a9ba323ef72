"""Table, figure and claims of words, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

NAMES = {"xl": "Transformer-XL", "lstm": "LSTM"}
TRAIN_WORDS = 2_088_628
MARGIN = 0.01  # nats per word


def list_rows(records: results.Records) -> list[list[Any]]:
    head = ["network", "parameters", "learning rate", "minutes", "updates", "passes"]
    rows = [[*head, "perplexity (seeds)"]]
    for kind, name in NAMES.items():
        if found := results.select(records, kind=kind):
            options = found[0]["options"]
            updates = options["trainer.max_steps"]
            passes = updates * options["data.batch_size"] * options["data.tgt_len"] / TRAIN_WORDS
            cells = [f"{found[0]['parameters']:,}", f"{found[0]['rate']:g}"]
            cells += [f"{found[0]['minutes']:g}", f"{updates:,}", f"{passes:.1f}"]
            values = [record["perplexity"] for record in found]
            rows.append([name, *cells, results.format_spread(values, 1)])
    return rows


def draw(records: results.Records, folder: Path) -> None:
    """Draw the nats of validation text by minutes of training."""
    curves = {kind: results.collect(records, "curve", kind=kind) for kind in NAMES}
    if not all(curves.values()):
        return
    seeds = results.format_seeds(*map(len, curves.values()))
    title = f"WikiText-2: who reads words better, by minutes? ({seeds})"
    labels = {"xlabel": "minutes of training", "ylabel": "nats per word of validation text"}
    with results.draw_figure(folder / "words.png", title, 8, 4, **labels) as axes:
        for kind, name in NAMES.items():
            [first, *_] = results.select(records, kind=kind)
            share = first["minutes"] / first["options"]["trainer.max_steps"]
            places = [(step + 1) * share for step in first["curve"]["steps"]]
            rows = [curve["val/nats"] for curve in curves[kind].values()]
            results.plot_seeds(axes, places, rows, label=name)


def list_claims(records: results.Records) -> list[results.Claim]:
    ours, theirs = (results.collect(records, "nats", kind=kind) for kind in NAMES)
    if not (gains := results.subtract(theirs, ours)):
        return []
    our_text, their_text = (results.format_spread(nats.values()) for nats in (ours, theirs))
    [first, *_] = results.select(records, kind="xl")
    scale = f"{first['minutes']:g} minutes of a thread in bfloat16"
    scale += f", {first['parameters'] / 1e6:.1f}M parameters, AdamW, tuned rates"
    name = "WikiText-2: fewer nats per word than an LSTM, at equal size and time"
    known = "24.0 and 48.7 perplexity of WikiText-103, unequal sizes; trained here: "
    texts = "paper, Table 1", known + their_text, our_text, scale
    return [results.Claim(name, *texts, gains, MARGIN)]


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
