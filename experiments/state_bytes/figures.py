"""Tables and figure of networks by the bytes of their state, from results.json alone."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from experiments import results
from experiments.results import AGAIN, Records
from experiments.state_bytes.pairs import LONGEST, VALUES
from experiments.test_time.figures import (
    BEFORE_INDEX,
    DOCUMENTATION,
    cut_scores,
    list_block_bytes,
)
from txl_lightning.analysis.contrasts import Contrast

NAMES = {
    "transformer_xl": "Transformer-XL, memory of 128",
    "sliding_window": "sliding window of 128",
    "compressive_transformer": "Compressive Transformer",
    "recurrent_memory_transformer": "Recurrent Memory Transformer",
    "gated_delta_net": "Gated DeltaNet",
    "mamba2": "Mamba-2",
    "lstm": "LSTM",
    "gated_delta_net, 4 x 256": "Gated DeltaNet, 4 rows of 256",
    "mamba2, 4 x 256": "Mamba-2, 4 rows of 256",
    "lstm, 4 x 256": "LSTM, 4 rows of 256",
    "recurrent_memory_transformer, 8 x 2 x 64": "RMT, 8 rows of two segments of 64",
}
OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}
COLUMN = "val/bits_per_byte"
MARGIN = 0.015  # bits per byte
PAIR_MARGIN = 2  # % points
N_SHOWN = 3
"""Tables on the page."""
FIRST_TEXT = "python_source"
TEXTS = {
    FIRST_TEXT: "Python source",
    "django_code": "Django's code",
    DOCUMENTATION: "Django's documentation",
    BEFORE_INDEX: "Django's documentation without its index",
}
XL_MEMORIES = "Transformer-XL, 32 to 512 states"
PAIRS = "pairs "
"""Beginning of the kinds of records of pairs."""
GUESSING = 100 / VALUES
TRAINED = "as trained"
SPAN = "span of 128"
"""Each token attends to 128 states, itself among them, as in the sliding window."""
CACHED = "cache of 2,000"
FRONT_WAYS = ("memory of 76", "memory of 96", TRAINED)
"""With as many bytes as Gated DeltaNet, as the Compressive Transformer, and as trained."""
XL = ("transformer_xl", TRAINED)
CONTRASTS = {
    "Transformer-XL of 16 rows against the window of 2, spans of 128": (
        ("transformer_xl", SPAN),
        ("sliding_window", TRAINED),
    ),
    "Gated DeltaNet against Transformer-XL, equal bytes of state": (
        ("gated_delta_net", TRAINED),
        ("transformer_xl", "memory of 76"),
    ),
    "Mamba-2 against Transformer-XL, equal bytes of state": (("mamba2", TRAINED), XL),
    "Compressive Transformer against Transformer-XL, equal bytes of state": (
        ("compressive_transformer", TRAINED),
        ("transformer_xl", "memory of 96"),
    ),
    "Gated DeltaNet against LSTM": (("gated_delta_net", TRAINED), ("lstm", TRAINED)),
    "Mamba-2 against LSTM": (("mamba2", TRAINED), ("lstm", TRAINED)),
    "Gated DeltaNet against RMT": (
        ("gated_delta_net", TRAINED),
        ("recurrent_memory_transformer", TRAINED),
    ),
    "Transformer-XL with a cache of 2,000 against without": (("transformer_xl", CACHED), XL),
}
"""First the network and reading that shall need less, then the other, by hypothesis."""
FRONT_GAP = 128
"""Tokens between a passage and its second occurrence, on the page of the study."""
FARTHEST = "256-384"
PAIR_CONTRASTS = {
    "memory of 512 against 128, 256 to 384 tokens back": (
        "Transformer-XL, memory of 512",
        "Transformer-XL, memory of 128",
        FARTHEST,
    ),
    "Gated DeltaNet against Mamba-2 (state of 75), 256 to 384 tokens back": (
        "Gated DeltaNet",
        "Mamba-2, state of 75",
        FARTHEST,
    ),
    "Gated DeltaNet against Transformer-XL (memory of 128), 256 to 384 tokens back": (
        "Gated DeltaNet",
        "Transformer-XL, memory of 128",
        FARTHEST,
    ),
    "Gated DeltaNet against LSTM, 64 to 127 tokens back": ("Gated DeltaNet", "LSTM", "64-127"),
}


def list_tables(records: Records) -> list[results.Rows]:
    """Return texts, passages and pairs by network; rates and precisions; repeated trainings."""
    lists = (list_networks, list_passages, list_pairs, list_rates, list_precisions, list_repeats)
    tables = [each(records) for each in lists]
    return [rows for rows in tables if len(rows) > 1]


def list_rates(records: Records) -> results.Rows:
    """Return the bits per byte of validation text by network, optimizer and rate."""
    lines = collect_rates(records)
    rates = sorted({rate for line in lines.values() for rate in line})
    rows = [["network and optimizer", *(f"{rate:g}" for rate in rates), "best rate"]]
    for name, line in lines.items():
        bits = (f"{line[rate]:.3f}" if rate in line else "" for rate in rates)
        rows.append([name, *bits, describe_best(line)])
    return rows


def describe_best(bits: Mapping[float, float]) -> str:
    """Return the best of the rates, unless a rate beyond it was not tried."""
    best = min(bits, key=bits.__getitem__)
    is_inside = min(bits) < best < max(bits)
    return f"{best:g}" if is_inside else "not known"


def collect_rates(records: Records) -> dict[str, dict[float, float]]:
    """Return the bits per byte after the last update, by network with optimizer, and by rate."""
    lines = {}
    for net, name in NAMES.items():
        for optimizer, title in OPTIMIZERS.items():
            tried = results.select(records, kind="rate", net=net, optimizer=optimizer)
            if tried:
                lines[f"{name}, {title}"] = {each["rate"]: find_last_bits(each) for each in tried}
    return lines


def list_precisions(records: Records) -> results.Rows:
    """Return the bits per byte of validation text at the best rate, in each precision."""
    rows = [["validation text, seed 0", "tuned in", "bits per byte", "and in", "bits per byte"]]
    for record in results.select(records, kind="precision"):
        key = {name: record[name] for name in ("net", "optimizer", "rate")}
        [tuned] = results.select(records, kind="rate", **key)
        both = ((r["ran_with"]["precision"], f"{find_last_bits(r):.3f}") for r in (tuned, record))
        rows.append([NAMES[record["net"]], *chain(*both)])
    return rows


def find_last_bits(record: dict[str, Any]) -> float:
    return record["curve"][COLUMN][-1]


def list_networks(records: Records) -> results.Rows:
    """Return the bytes of a row's state and the bits per byte of each text, by way of reading."""
    rows = [["network, and how it is read", "parameters", "bytes of state", *TEXTS.values()]]
    for net, name in NAMES.items():
        for way in list_ways(records, net):
            found = [collect(records, net, way, text).whole for text in TEXTS]
            cells = [results.format_spread(each.values()) if each else "" for each in found]
            parameters = results.select(records, kind=net)[0]["parameters"]
            size = find_state_bytes(records, net, way)
            rows.append([name_reading(name, way), f"{parameters:,}", f"{size:,}", *cells])
    return rows


def name_reading(name: str, way: str) -> str:
    return name if way == TRAINED else f"{name}, read with a {way}"


def list_front(records: Records) -> results.Rows:
    """Return, by network, bytes of state, bits per byte, and what passages save.

    Passages are read with the memory of training alone.
    """
    head = ["network", "bytes of state", "bits per byte", f"saved after {FRONT_GAP} tokens, nats"]
    rows = [head]
    passages = collect_passages(records)
    for net, name in NAMES.items():
        for way in [way for way in list_ways(records, net) if way in FRONT_WAYS]:
            bits = collect(records, net, way, FIRST_TEXT).whole.values()
            saved = passages[name][FRONT_GAP].values()
            cells = [f"{find_state_bytes(records, net, way):,}", results.format_spread(bits)]
            cells.append(results.format_spread(saved) if way == TRAINED else "")
            rows.append([name_reading(name, way), *cells])
    return rows


def list_ways(records: Records, net: str) -> list[str]:
    """Return the ways in which a network was read, the one with the fewest bytes first."""
    found = results.select(records, kind=net)
    ways = found[0]["readings"] if found else {}
    return sorted(ways, key=lambda way: ways[way]["state_bytes"])


def find_state_bytes(records: Records, net: str, way: str) -> int:
    return results.select(records, kind=net)[0]["readings"][way]["state_bytes"]


def collect(records: Records, net: str, way: str, text: str) -> results.Scores:
    """Return the bits per byte of a text, and of its blocks, by seed."""
    if text == BEFORE_INDEX:
        whole = collect(records, net, way, DOCUMENTATION)
        part = slice(len(list_block_bytes(records, text)))
        return cut_scores(whole, list_block_bytes(records, DOCUMENTATION), part)
    keys = ("bits_per_byte", "blocks")
    return results.Scores(
        *(results.collect(records, "readings", way, key, text, kind=net) for key in keys)
    )


def list_passages(records: Records) -> results.Rows:
    """Return how many nats are saved on a passage that comes again, by the tokens between."""
    lines = collect_passages(records)
    gaps = [*next(iter(lines.values()), {})]
    rows = [["nats saved per token of a passage, by tokens between", *gaps]]
    for name, line in lines.items():
        rows.append([name, *(results.format_spread(line[gap].values()) for gap in gaps)])
    return rows


def collect_passages(records: Records) -> results.Lines:
    """Return the nats that a passage costs less than its control, by network, gap and seed."""
    lines: dict[str, dict[int, dict[int, float]]] = {}
    for net, name in NAMES.items():
        for seed, gaps in results.collect(records, "passages", kind=net).items():
            for gap, nats in gaps.items():
                by_gap = lines.setdefault(name, {}).setdefault(int(gap), {})
                by_gap[seed] = nats["control"] - nats["copy"]
    return {name: dict(sorted(line.items())) for name, line in lines.items()}


def list_pairs(records: Records) -> results.Rows:
    """Return the share of values that small networks recall, by distance."""
    lines = collect_pairs(records)
    distances = [*next(iter(lines.values()), {})]
    rows = [["values recalled (%), by tokens back", "parameters", "bytes of state", *distances]]
    for name, line in lines.items():
        record = results.select(records, kind=f"{PAIRS}{name}")[0]
        cells = (results.format_spread(line[each].values(), 0) for each in distances)
        rows.append([name, f"{record['parameters']:,}", f"{record['state_bytes']:,}", *cells])
    return rows


def collect_pairs(records: Records) -> results.Lines:
    """Return the percent of values that are recalled, by network, range of distances and seed."""
    kinds = {r["kind"] for r in records.values() if r["kind"].startswith(PAIRS)}
    own = sorted(kind for kind in kinds if not kind.endswith(AGAIN))
    return {kind.removeprefix(PAIRS): collect_shares(records, kind=kind) for kind in own}


def collect_shares(records: Records, **values: Any) -> dict[str, results.BySeed]:
    """Return the percent of right values by range of distances, and by seed."""
    shares: dict[str, dict[int, float]] = {}
    for seed, rows in results.collect(records, "rows", **values).items():
        for row in rows:
            name = f"{row['nearest']}-{min(2 * row['nearest'] - 1, 2 * LONGEST)}"
            shares.setdefault(name, {})[seed] = 100 * row["accuracy"]
    return shares


def list_repeats(records: Records) -> results.Rows:
    """Return the bits per byte, and the shares of pairs, of each training that was repeated."""
    pairs = {}
    for text, title in TEXTS.items():
        for net, name in NAMES.items():
            kinds = (net, f"{net}{AGAIN}")
            scores = (collect(records, kind, TRAINED, text) for kind in kinds)
            pairs[f"{title}: {name}"] = tuple(each.whole for each in scores)
    for name, before in collect_pairs(records).items():
        again = collect_shares(records, kind=f"{PAIRS}{name}{AGAIN}")
        for distance, shares in again.items():
            label = f"pairs, % of the values {distance} tokens back: {name}"
            pairs[label] = (before[distance], shares)
    return results.list_repeats(pairs)


def list_contrasts(records: Records) -> list[Contrast]:
    """Return the contrasts of each text, and then those of pairs; first what shall be better."""
    found = [
        results.compare_blocks(
            f"{title}: {name}",
            *(collect(records, *side, text) for side in (first, second)),
            "bits per byte",
            MARGIN,
        )
        for text, title in TEXTS.items()
        for name, (first, second) in CONTRASTS.items()
    ]
    shares = collect_pairs(records)
    for name, (first, second, distance) in PAIR_CONTRASTS.items():
        better, worse = (shares.get(each, {}).get(distance, {}) for each in (first, second))
        # More is better.
        effects = results.subtract(better, worse)
        found.append(Contrast(f"pairs: {name}", effects, "% points", PAIR_MARGIN))
    return found


def draw(records: Records, folder: Path) -> None:
    """Draw bits against bytes of state, and recall of passages and pairs by distance."""
    title = "Python source, by the state of a row"
    labels = {"xlabel": "bytes of a row's state, float32", "ylabel": "bits per byte"}
    lines = collect_sizes(records)
    results.draw_lines(folder / "state_bytes.png", title, lines, xscale="log", **labels)
    labels = {"xlabel": "tokens between the passages", "ylabel": "nats saved per token"}
    passages = collect_passages(records)
    title = "A passage that comes again"
    results.draw_lines(folder / "passages.png", title, passages, xscale="log", **labels)
    labels = {"xlabel": "distance to the value (tokens)"}
    labels |= {"ylabel": f"values recalled (%; by guessing {GUESSING:g})"}
    pairs = collect_pairs(records)
    results.draw_lines(folder / "pairs.png", "Values recalled", pairs, 8, 4.5, **labels)


def collect_sizes(records: Records) -> results.Lines:
    """Return the bits per byte of Python source by network, by bytes of state, and by seed.

    Without the cache, which has fewer bits and more bytes than all others.
    """
    lines = {}
    for net in (net for net in NAMES if results.select(records, kind=net)):
        ways = [way for way in list_ways(records, net) if way not in (SPAN, CACHED)]
        label = XL_MEMORIES if len(ways) > 1 else NAMES[net]
        lines[label] = {
            find_state_bytes(records, net, way): collect(records, net, way, FIRST_TEXT).whole
            for way in ways
        }
    return lines
