"""compare --by: groups of runs that differ in one setting, on the test text, paired by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..analysis.contrasts import Contrast, judge
from ..data.store import EvalText
from ..errors import DataError, print_notice, require
from ..evaluation.protocols import get_protocol
from ..evaluation.scoring import evaluate
from ..imports import NETWORKS
from ..model.config import CLASS
from ..runs.folder import find_checkpoint
from ..runs.listing import Run
from ..runs.metrics_table import find_differences
from ..tables import align_columns
from ..terminal import show_progress
from .inputs import load_model

SEED = "seed_everything"
# Settings that decide where things are, and nothing of a result.
PLACES = ("data.data_dir", "trainer.default_root_dir", "ckpt_path", "resume", "checkpoint.mirror")
NET_CLASS = f"model.net.{CLASS}"
OURS = "TransformerXL"  # the network of a config without a class
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


def compare_groups(runs: Sequence[Run], key: str, margin: float) -> None:
    """Print the mean of each group and seed, and the effect between each two groups."""
    groups = group_runs(runs, key)
    print_others(runs, key)
    measured = {name: measure_group(name, groups[name]) for name in groups}
    require_one_text([each for group in measured.values() for each in group.values()])
    unit = next(iter(next(iter(measured.values())).values())).unit
    rows = [[key, "seeds", f"{unit} (test)", "each seed"]]
    for name, group in measured.items():
        means = [each.mean for each in group.values()]
        cells = [f"{len(means)}", f"{np.mean(means):.4f}", " ".join(f"{m:.4f}" for m in means)]
        rows.append([name, *cells])
    print(align_columns(rows))
    pairs = [["first against second", f"effect in {unit}", "95 % interval", "result", "seeds"]]
    for first, second in combinations(measured, 2):
        contrast = pair_groups(first, measured[first], second, measured[second], unit, margin)
        interval = contrast.format_interval() or "unknown: one seed"
        cells = [contrast.format(contrast.mean), interval, judge(contrast), contrast.count_seeds()]
        pairs.append([contrast.name, *cells])
    print(align_columns(pairs))


def group_runs(runs: Sequence[Run], key: str) -> dict[str, dict[Any, Run]]:
    """Return the runs by the setting's value, and then by seed.

    Raises:
        ValueError: a seed, a setting that no run has, one group, or a seed twice in a group.
    """
    key = NET_CLASS if key == "model.net" else key
    require(key != SEED, "by", key, "another setting: seeds are paired, and never compared")
    is_known = key == NET_CLASS or any(key in run.settings for run in runs)
    require(is_known, "by", key, "a setting of these runs, as model.net.mem_len")
    names = [name_group(run, key) for run in runs]
    expected = "a setting with two values or more in these runs"
    require(len({*names}) > 1, "by", f"{key} ({names[0]} in all runs)", expected)
    groups: dict[str, dict[Any, Run]] = {}
    for run, name in zip(runs, names, strict=True):
        group = groups.setdefault(name, {})
        seed = run.settings.get(SEED)
        expected = f"one run with seed {seed} and {key} {name}"
        require(seed not in group, "runs", str(run.folder), expected)
        group[seed] = run
    return groups


def name_group(run: Run, key: str) -> str:
    """Return the value of a setting as text; of the network's class, its name."""
    value = run.settings.get(key)
    if key != NET_CLASS:
        return str(value)
    names = {path: name for name, path in NETWORKS.items()}
    return OURS if value is None else names.get(value, str(value))


def print_others(runs: Sequence[Run], key: str) -> None:
    """Name the other settings in which runs differ: the effect may be theirs."""
    differences = find_differences([run.settings for run in runs])
    # Another network has other settings.
    is_class = key in ("model.net", NET_CLASS)
    names = [name for name in differences if name not in (key, SEED, *PLACES)]
    names = [name for name in names if not (is_class and name.startswith("model.net."))]
    if names:
        print_notice(f"warning: runs also differ in {', '.join(names)}")


def measure_group(name: str, group: Mapping[Any, Run]) -> dict[Any, Measured]:
    """Return the results of a group's runs by seed, in the order of the seeds."""
    return {
        seed: measure_run(group[seed], f"{name}, seed {seed}") for seed in sorted(group, key=str)
    }


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
