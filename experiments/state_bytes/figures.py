"""Tables and figure of networks by the bytes of their state, from results.json alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import results
from txl_lightning.analysis.contrasts import Contrast

NAMES = {
    "transformer_xl": "Transformer-XL, memory of 128",
    "sliding_window": "sliding window of 128",
    "compressive_transformer": "Compressive Transformer",
    "recurrent_memory_transformer": "Recurrent Memory Transformer",
    "gated_delta_net": "Gated DeltaNet",
    "mamba2": "Mamba-2",
    "lstm": "LSTM",
}
OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}
CHANGES = {"dropout": "dropout of 0.1", "precision": "float32, not bf16-mixed"}
COLUMN = "val/bits_per_byte"
MARGIN = 0.015  # bits per byte


def list_tables(records: results.Records) -> list[results.Rows]:
    tables = [list_rates(records), list_changes(records), list_networks(records)]
    return [rows for rows in tables if len(rows) > 1]


def list_rates(records: results.Records) -> results.Rows:
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


def collect_rates(records: results.Records) -> dict[str, dict[float, float]]:
    """Return the bits per byte after the last update, by network with optimizer, and by rate."""
    lines = {}
    for net, name in NAMES.items():
        for optimizer, title in OPTIMIZERS.items():
            tried = results.select(records, kind="rate", net=net, optimizer=optimizer)
            if tried:
                lines[f"{name}, {title}"] = {each["rate"]: find_last_bits(each) for each in tried}
    return lines


def list_changes(records: results.Records) -> results.Rows:
    """Return the bits per byte of validation text at the best rate: as tuned, and changed."""
    rows = [["network", "change", "as tuned", "changed"]]
    for record in results.select(records, kind="change"):
        key = {name: record[name] for name in ("net", "optimizer", "rate")}
        [tuned] = results.select(records, kind="rate", **key)
        bits = (f"{find_last_bits(each):.3f}" for each in (tuned, record))
        rows.append([NAMES[record["net"]], CHANGES[record["change"]], *bits])
    return rows


def find_last_bits(record: dict[str, Any]) -> float:
    return record["curve"][COLUMN][-1]


def list_networks(records: results.Records) -> results.Rows:
    """Return a row for each network of which seeds that count were trained."""
    rows = [["network", "parameters", "bytes of a row's state", "bits per byte (seeds)"]]
    for net, name in NAMES.items():
        if found := results.select(records, kind=net):
            bits = results.format_spread([record["bits_per_byte"] for record in found])
            sizes = f"{found[0]['parameters']:,}", f"{found[0]['state_bytes']:,}"
            rows.append([name, *sizes, bits])
    return rows


def list_contrasts(records: results.Records) -> list[Contrast]:
    """Return each network against the Transformer-XL; above 0, the network needs fewer bits."""
    bits = {net: results.collect(records, "bits_per_byte", kind=net) for net in NAMES}
    first = bits.pop("transformer_xl")
    return [
        results.compare(
            f"{NAMES[net]} against Transformer-XL", found, first, "bits per byte", MARGIN
        )
        for net, found in bits.items()
    ]


def draw(records: results.Records, folder: Path) -> None:
    """Draw the bits per byte of validation text by rate, of the one seed that tunes."""
    lines = {
        name: {rate: {0: line[rate]} for rate in sorted(line)}
        for name, line in collect_rates(records).items()
    }
    labels = {"xlabel": "learning rate", "ylabel": "bits per byte of the validation text"}
    title = "Rates of networks, Python source, tuning"
    results.draw_lines(folder / "rates.png", title, lines, xscale="log", **labels)
