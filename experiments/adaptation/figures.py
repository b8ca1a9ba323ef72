"""Tables and figure of adaptation on four texts, from results.json alone."""

from pathlib import Path
from statistics import median

from experiments import results
from experiments.results import AGAIN
from txl_lightning.analysis.contrasts import Contrast

TEXTS = {
    "python source": "Python source",
    "novels": "novels, 10 MB",
    "novel": "Howards End",
    "shakespeare": "Tiny Shakespeare",
}
WAYS = {
    "static": "static",
    "steps": "gradient steps",
    "cache": "cache of 20,000 states",
    "both": "adapted: both",
}
PPMD = "PPMd after the training text"
ZPAQ = "zpaq -m5 after training and validation text"
MARGIN = 0.01  # bits per byte


def list_tables(records: results.Records) -> list[results.Rows]:
    """Return the bits per byte by text and way, and the times as multiples of static."""
    names = [*WAYS.values()]
    head = ["bits per byte", *names, "both, share of PPMd's", PPMD, "PPMd alone", ZPAQ]
    bits: list[list[str]] = [head]
    times = [["time (static = 1)", *names]]
    for kind, text in TEXTS.items():
        if (ppmd := records.get(f"ppmd {kind}")) and collect(records, kind, "both"):
            found = [results.format_spread(collect(records, kind, way).values()) for way in WAYS]
            share = summarize(records, kind, "both") / ppmd["after"]
            alone = f"{ppmd['alone']:.3f} (order {ppmd['order']})"
            bits.append([text, *found, f"{share:.2f}", f"{ppmd['after']:.3f}", alone])
            bits[-1].append(format_zpaq(records, kind))
            times.append([text, *(f"{compare_time(records, kind, way):.1f}" for way in WAYS)])
    return [table for table in (bits, times, list_again(records)) if len(table) > 1]


def format_zpaq(records: results.Records, kind: str) -> str:
    found = records.get(f"zpaq {kind}")
    return f"{found['after']:.3f}" if found else ""


def list_again(records: results.Records) -> results.Rows:
    """Return the networks that were trained again: with what was chosen, and intervals of the text.

    An interval is that of `evaluate`, by blocks of the test text, for the weights of one seed.
    """
    rows: list[list[str]] = [
        ["measured again", "seed", "static", "both (95 %, by blocks)", "chosen"]
    ]
    for kind, text in TEXTS.items():
        for record in results.select(records, kind=f"{kind}{AGAIN}"):
            both = record["tests"]["both"]["interval"]["bits_per_byte"]
            bits = record["bits_per_byte"]
            shown = f"{bits['both']:.3f} ({both[0]:.3f} to {both[1]:.3f})"
            names = ("rate", "cache_theta", "cache_weight")
            chosen = ", ".join(f"{name} {record['chosen'][name]:g}" for name in names)
            rows.append([text, str(record["seed"]), f"{bits['static']:.3f}", shown, chosen])
    return rows


def list_contrasts(records: results.Records) -> list[Contrast]:
    """Return what each way saves of the bits of static evaluation, and both ways of PPMd's."""
    found = {}
    for kind, text in TEXTS.items():
        for way in [*WAYS][1:]:
            both = collect(records, kind, way), collect(records, kind, "static")
            found[f"{text}: {WAYS[way]} against static"] = both
    for kind, text in TEXTS.items():
        adapted = collect(records, kind, "both")
        ppmd = dict.fromkeys(adapted, records.get(f"ppmd {kind}", {}).get("after"))
        found[f"{text}: {WAYS['both']} against {PPMD}"] = adapted, ppmd
    return [results.compare(name, *both, "bits per byte", MARGIN) for name, both in found.items()]


def collect(records: results.Records, kind: str, way: str) -> results.BySeed:
    return results.collect(records, "bits_per_byte", way, kind=kind)


def summarize(records: results.Records, kind: str, way: str) -> float:
    return results.spread(collect(records, kind, way).values())[0]


def compare_time(records: results.Records, kind: str, way: str) -> float:
    """Return how often static evaluation fits in the seconds of this one: the median of seeds."""
    tests = [record["tests"] for record in results.select(records, kind=kind)]
    return median(test[way]["seconds"] / test["static"]["seconds"] for test in tests)


def draw(records: results.Records, folder: Path) -> None:
    """Draw the bits of each seed, from static to adapted, beside PPMd's; a panel for each text."""
    kinds = [kind for kind in TEXTS if collect(records, kind, "both")]
    times = {way: compare_time(records, kinds[0], way) for way in WAYS}
    labels = {way: f"{name}\n{times[way]:.1f} times as long" for way, name in WAYS.items()}
    panels = {
        TEXTS[kind]: {label: collect(records, kind, way) for way, label in labels.items()}
        for kind in kinds
    }
    ppmd = "PPMd after the\ntraining text"
    references = {TEXTS[kind]: {ppmd: records[f"ppmd {kind}"]["after"]} for kind in kinds}
    results.draw_panels(folder / "adaptation.png", "bits per byte", panels, references)
