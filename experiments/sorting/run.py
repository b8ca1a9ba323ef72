"""Does a network sort 20 digits, and does it answer the same with memory as by rereading?

    python -m experiments.sorting.run [--seeds 1 2 3] [--only fixed fresh] [--fast] [--time]

Task and network of augustwester/transformer-xl: 20 digits, then the same 20 in order. "fixed" is
its training, too: 50,000 samples, 16 times each, Adam. "fresh": samples never repeat, Muon, a
cosine schedule, and 3,000 steps in place of 6,256. Every run has samples of its own for training
and for testing. --time also measures the time of answering by length; it needs an idle machine.
"""

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from experiments import common
from experiments.sorting.answers import BATCH_SIZE, score_answers, time_answers
from txl_lightning import CorpusDataModule

LENGTH = 20
OPTIONS = {
    "config": "configs/tasks/sort.yaml",
    # Each sample is one segment, so training needs no memory.
    "model.net.mem_len": 0,
    "trainer.val_check_interval": 1000,
}
KINDS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "fresh": {
        "data.task.n_train": None,
        "model.optim.name": "muon",
        "model.optim.lr": 1e-3,
        "model.optim.muon_lr": 3e-3,
        "model.optim.betas": [0.9, 0.95],
        "model.optim.schedule": "cosine",
        "model.optim.warmup_steps": 50,
        "trainer.max_steps": 3000,
    },
}
FAST = {"trainer.max_steps": 4, "trainer.val_check_interval": 4, "data.batch_size": 8}
N_SAMPLE = 5000
TIMED_LENGTHS = (10, 20, 40)  # digits of timed samples


def main() -> None:
    """Train and test each kind with each seed."""
    timing = {"action": "store_true", "help": "time the answers of the first seed's network"}
    args = common.parse_args(__file__, __doc__, kinds=KINDS, time=timing)
    common.measure_kinds(args, measure_answers)
    if args.time:
        common.measure_once(args, "time", measure_times)


def train(args: Namespace, kind: str, seed: int) -> common.TrainedRun:
    options = OPTIONS | KINDS[kind] | {"data.task.seed": choose_samples(kind, seed)}
    return common.train(args, f"{kind} {seed}", seed, options | (FAST if args.fast else {}))


def choose_samples(kind: str, seed: int) -> int:
    """Return the random seed of a run's samples: no two runs have the same."""
    return 1000 * list(KINDS).index(kind) + seed


def measure_answers(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return the record of a run: what `score_answers` finds on samples of its own, and sizes."""
    run, count = train(args, kind, seed), 64 if args.fast else N_SAMPLE
    samples_BL = draw_samples(count, choose_samples(kind, seed))
    scores = score_answers(run.net, *samples_BL.split(LENGTH, dim=1))
    return {"kind": kind, "seed": seed} | run.describe() | {"samples": count} | scores


def draw_samples(count: int, seed: int) -> Tensor:
    """Return samples [count, 2 * LENGTH] of the test split: digits, then the same in order."""
    data = CorpusDataModule(corpus="sort", task={"n_eval": count, "seed": seed})
    places_BL = torch.arange(count * 2 * LENGTH).view(count, 2 * LENGTH).numpy()
    return torch.from_numpy(data.store.text("test").ids_at(places_BL).astype("int64"))


def measure_times(args: Namespace) -> dict[str, Any]:
    """Return the record of one network: the times of both ways by length."""
    run, count = train(args, "fresh", args.seeds[0]), 16 if args.fast else BATCH_SIZE
    lengths = TIMED_LENGTHS[: 2 if args.fast else None]
    rows = [time_answers(run.net, length, count) for length in lengths]
    return {"kind": "time", "text": run.text, "samples": count, "rows": rows}


if __name__ == "__main__":
    main()
