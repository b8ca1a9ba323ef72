"""Does a network learn to sort 20 digits?

    python -m experiments.sorting.run [--seeds 1 2 3] [--only fixed fresh] [--fast]

Task and network of augustwester/transformer-xl: 20 digits, then the same 20 in order. "fixed" is
its training, too: 50,000 samples, 16 times each, Adam. "fresh": samples never repeat, Muon, a
cosine schedule, and 3,000 steps in place of 6,256. Every run has samples of its own for training
and for testing.
"""

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from experiments import common
from txl_lightning import CorpusDataModule, TransformerXL
from txl_lightning.model import CachedReader, EvalLengths

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
N_SAMPLE, ROWS = 5000, 1000
"""Samples of the test, and how many are answered at once."""


def main() -> None:
    """Train and test each kind with each seed."""
    args = common.parse_args(__file__, __doc__, kinds=KINDS)
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return the shares of right answers, and of right digits by place, on samples of its own."""
    sample_seed = choose_samples(kind, seed)
    options = OPTIONS | KINDS[kind] | {"data.task.seed": sample_seed}
    run = common.train(args, f"{kind} {seed}", seed, options | (FAST if args.fast else {}))
    count = 64 if args.fast else N_SAMPLE
    is_right_BL = find_right_digits(run.net, draw_samples(count, sample_seed))
    shares = {
        "memory_accuracy": is_right_BL.all(1).double().mean().item(),
        "memory_digit_accuracy": is_right_BL.double().mean(0).tolist(),
    }
    return {"kind": kind, "seed": seed} | run.describe() | {"samples": count} | shares


def choose_samples(kind: str, seed: int) -> int:
    """Return the random seed of a run's samples: no two runs have the same."""
    return 1000 * list(KINDS).index(kind) + seed


def draw_samples(count: int, seed: int) -> Tensor:
    """Return samples [count, 2 * LENGTH] of the test split: digits, then the same in order."""
    data = CorpusDataModule(corpus="sort", task={"n_eval": count, "seed": seed})
    places_BL = torch.arange(count * 2 * LENGTH).view(count, 2 * LENGTH).numpy()
    return torch.from_numpy(data.store.text("test").ids_at(places_BL).astype("int64"))


def find_right_digits(net: TransformerXL, samples_BL: Tensor) -> Tensor:
    """Return which digits of the answers are right."""
    rows = [part_BL.split(LENGTH, dim=1) for part_BL in samples_BL.split(ROWS)]
    return torch.cat([answer(net, shown_BL) == right_BL for shown_BL, right_BL in rows])


@torch.inference_mode()
def answer(net: TransformerXL, shown_BL: Tensor) -> Tensor:
    """Return the most probable digits, each read into the memory once."""
    reader, tokens_BL, digits = CachedReader(net), shown_BL, []
    memory = reader.empty_memory(len(shown_BL), EvalLengths(mem_len=2 * LENGTH))
    for _ in range(LENGTH):
        logits_BLV, memory = reader(tokens_BL, memory)
        tokens_BL = logits_BLV[:, -1:].argmax(-1)
        digits.append(tokens_BL)
    return torch.cat(digits, dim=1)


if __name__ == "__main__":
    main()
