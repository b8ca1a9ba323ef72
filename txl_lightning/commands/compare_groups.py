"""compare --by: groups of runs that differ in some settings, on the test text, paired by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..analysis.contrasts import Contrast, judge_contrast
from ..data.store import EvalText
from ..errors import DataError, print_notice, require
from ..evaluation.protocols import get_protocol
from ..evaluation.scoring import evaluate
from ..runs.folder import find_checkpoint
from ..runs.groups import (
    NET,
    NET_CLASS,
    SEED,
    check_keys,
    choose_runs,
    describe_settings,
    group_runs,
    list_choices,
    list_other_keys,
    split_numbers,
)
from ..runs.listing import Run
from ..tables import align_columns
from ..terminal import show_progress
from .inputs import load_model

N_BLOCK = 100  # of the test text, by which it is drawn again


@dataclass(frozen=True)
class Measured:
    """The result of a run on its test text."""

    seed: Any
    unit: str
    mean: float
    blocks: list[float]
    """Means of equal parts of the scored tokens."""
    fingerprint: str


def compare_groups(runs: Sequence[Run], by: str, margin: float) -> None:
    """Print the mean of each group and seed, and the effect between each two groups."""
    keys = check_keys(runs, by)
    found = group_runs(runs, keys)
    groups = {name: index_by_seed(choose_runs(name, found[name], keys), by, name) for name in found}
    print_choices(found, groups, keys)
    measured = {name: measure_group(name, groups[name]) for name in groups}
    require_one_text([each for group in measured.values() for each in group.values()])
    unit = next(iter(next(iter(measured.values())).values())).unit
    rows = [[by, "seeds", f"{unit} (test)", "each seed"]]
    for name, group in measured.items():
        means = [each.mean for each in group.values()]
        cells = [f"{len(means)}", f"{np.mean(means):.4f}", " ".join(f"{m:.4f}" for m in means)]
        rows.append([name, *cells])
    print(align_columns(rows))
    pairs = [["first against second", f"effect in {unit}", "95 % interval", "result", "seeds"]]
    for first, second in combinations(measured, 2):
        contrast = pair_groups(first, measured[first], second, measured[second], unit, margin)
        interval = contrast.format_interval() or "unknown: one seed"
        result = judge_contrast(contrast)
        cells = [contrast.format(contrast.mean), interval, result, contrast.count_seeds()]
        pairs.append([contrast.name, *cells])
    print(align_columns(pairs))


def index_by_seed(runs: Sequence[Run], by: str, name: str) -> dict[Any, Run]:
    """Return the runs of a group by their seeds; a seed twice is a ValueError."""
    group: dict[Any, Run] = {}
    for run in runs:
        seed = run.settings.get(SEED)
        expected = f"one run with seed {seed} and {by} {name}"
        require(seed not in group, "runs", str(run.folder), expected)
        group[seed] = run
    return group


def print_choices(
    found: Mapping[str, Sequence[Run]], groups: Mapping[str, Mapping[Any, Run]], keys: Sequence[str]
) -> None:
    """Print the other settings that each group has by validation; warn of those beside them."""
    tuned = dict.fromkeys(
        key
        for name, runs in found.items()
        if len(groups[name]) < len(runs)
        for key in list_other_keys(runs, keys)
    )
    if tuned:
        runs = [run for name in found for run in found[name]]
        texts = describe_settings(runs, tuned)
        text_of = {run.folder: text for run, text in zip(runs, texts, strict=True)}
        rows = [[",".join(keys), "choices", "best validation"]]
        for name, group in groups.items():
            count = len(list_choices(found[name], keys))
            rows.append([name, f"{count}", text_of[next(iter(group.values())).folder]])
        print(align_columns(rows), flush=True)
    chosen = [run for group in groups.values() for run in group.values()]
    # Another network has other settings.
    hidden = [*tuned, *([NET] if NET_CLASS in keys else [])]
    if names := list_other_keys(chosen, [*keys, *hidden]):
        print_notice(f"warning: runs also differ in {', '.join(names)}")


def measure_group(name: str, group: Mapping[Any, Run]) -> dict[Any, Measured]:
    """Return the results of a group's runs by seed, in the order of the seeds; print each of them
    at once."""
    measured = {}
    for seed in sorted(group, key=lambda seed: split_numbers(str(seed))):
        label = f"{name}, seed {seed}"
        result = measure_run(group[seed], label)
        print(f"{label}  {result.mean:.4f} {result.unit}", flush=True)
        measured[seed] = result
    return measured


def measure_run(run: Run, name: str) -> Measured:
    """Read the test text in segments as `evaluate` does, with the run's best weights."""
    checkpoint, model, _ = load_model(find_checkpoint(run.folder), None)
    text = EvalText.from_store(*checkpoint.open_text(None), "test")
    protocol = get_protocol("segments")
    nats_N = np.full(protocol.stream(text.tokens).end, np.nan, np.float32)
    with show_progress(name, len(nats_N), in_bytes=False) as advance:
        record = evaluate(model, text, protocol, nats_N, advance)
    nats = nats_N[np.isfinite(nats_N)].astype(np.float64)
    unit = "bits per byte" if "bits_per_byte" in record else f"nats per {text.vocab.unit}"
    mean = record.get("bits_per_byte", record["nats"])
    # Bits per byte are nats in another unit.
    scaled = nats * (mean / record["nats"])
    blocks = [float(block.mean()) for block in np.array_split(scaled, min(N_BLOCK, len(scaled)))]
    return Measured(run.settings.get(SEED), unit, mean, blocks, text.fingerprint)


def require_one_text(results: Sequence[Measured]) -> None:
    texts = {(each.fingerprint, each.unit, len(each.blocks)) for each in results}
    if len(texts) > 1:
        raise DataError(f"runs: {len(texts)} test texts; expected one, with one vocabulary")


def pair_groups(
    first: str,
    of_first: Mapping[Any, Measured],
    second: str,
    of_second: Mapping[Any, Measured],
    unit: str,
    margin: float,
) -> Contrast:
    """Return the effect of the seeds that both groups have; above 0, the first group is better."""
    seeds = [seed for seed in of_first if seed in of_second]
    expected = f"a seed that {first} and {second} share"
    require(bool(seeds), "runs", f"seeds {[*of_first]} and {[*of_second]}", expected)
    effects = [of_second[seed].mean - of_first[seed].mean for seed in seeds]
    blocks = [
        [b - a for a, b in zip(of_first[seed].blocks, of_second[seed].blocks, strict=True)]
        for seed in seeds
    ]
    return Contrast(f"{first} against {second}", effects, unit, margin, blocks)
