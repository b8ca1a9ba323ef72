"""Does a network sort 20 digits, and does it answer the same with memory as by rereading?

    python -m experiments.sorting.run [--seeds 1 2 3] [--fast] [--time]

Task and network of augustwester/transformer-xl: 20 digits, then the same 20 in order. Differences:
training samples never repeat (theirs: 50,000 samples, 16 epochs), Muon, a cosine schedule, and
3,000 steps of 128 samples (theirs: 6,256). --time also measures the time of answering by length;
it needs an idle machine.
"""

import time
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from experiments import common
from txl_lightning import CorpusDataModule, TransformerXL
from txl_lightning.checkpoints import load_run
from txl_lightning.model import CachedReader, EvalLengths

LENGTH = 20
OPTIONS = {
    "config": "configs/tasks/sort.yaml",
    # Each sample is one segment, so training needs no memory.
    "model.net.mem_len": 0,
    "data.task.n_train": None,
    "model.optim.name": "muon",
    "model.optim.lr": 1e-3,
    "model.optim.muon_lr": 3e-3,
    "model.optim.betas": [0.9, 0.95],
    "model.optim.schedule": "cosine",
    "model.optim.warmup_steps": 50,
    "trainer.max_steps": 3000,
    "trainer.val_check_interval": 1000,
}
FAST = {"trainer.max_steps": 4, "trainer.val_check_interval": 4, "data.batch_size": 8}
N_SAMPLE, BATCH_SIZE = 5000, 1000
"""Test samples, and how many are answered at once, as in the blog."""
TIMED_LENGTHS, ROUNDS = (10, 20, 40), 5
"""Digits of timed samples; each way of answering is timed in every round, the fastest counts."""


def main() -> None:
    """Train and test each seed."""
    timing = {"action": "store_true", "help": "time the answers of the first seed's network"}
    args = common.parse_args(__file__, __doc__, time=timing)
    for seed in args.seeds:
        common.measure_once(args, f"seed {seed}", measure_answers, args, seed)
    if args.time:
        common.measure_once(args, "time", measure_times, args)


def choose_options(args: Namespace, seed: int) -> dict[str, Any]:
    options = {"seed_everything": seed, "trainer.precision": args.precision}
    return OPTIONS | options | (FAST if args.fast else {})


def train(args: Namespace, seed: int) -> TransformerXL:
    net, _ = load_run(
        common.checkpoint(common.fit(args.runs / f"seed_{seed}", choose_options(args, seed)))
    )
    return net


def measure_answers(args: Namespace, seed: int) -> dict[str, Any]:
    """Return shares of right digits and answers on fresh samples, with memory and by rereading."""
    net, count = train(args, seed), 64 if args.fast else N_SAMPLE
    shown_BL, right_BL = draw_samples(count).split(LENGTH, dim=1)
    parts = shown_BL.split(BATCH_SIZE)
    answers = {
        "memory": torch.cat([answer_with_memory(net, part_BL) for part_BL in parts]),
        "rereading": torch.cat([answer_by_rereading(net, part_BL) for part_BL in parts]),
    }
    found = {"kind": "answers", "seed": seed, "options": choose_options(args, seed)}
    found |= {"parameters": common.count_parameters(net), "samples": count}
    found |= {"identical": mean_share((answers["memory"] == answers["rereading"]).all(1))}
    for way, answer_BL in answers.items():
        is_right_BL = answer_BL == right_BL
        found[f"{way}_accuracy"] = mean_share(is_right_BL.all(1))
        found[f"{way}_digit_accuracy"] = is_right_BL.double().mean(0).tolist()
    return found


def draw_samples(count: int) -> Tensor:
    """Return samples [count, 2 * LENGTH] of the test split: digits, then the same in order."""
    data = CorpusDataModule(corpus="sort", task={"n_eval": count})
    places_BL = torch.arange(count * 2 * LENGTH).view(count, 2 * LENGTH).numpy()
    return torch.from_numpy(data.store.text("test").ids_at(places_BL).astype("int64"))


def mean_share(is_true_B: Tensor) -> float:
    return is_true_B.double().mean().item()


@torch.inference_mode()
def answer_with_memory(net: TransformerXL, shown_BL: Tensor) -> Tensor:
    """Return the most probable digits; each token is read once."""
    reader, tokens_BL, answer = CachedReader(net), shown_BL, []
    count = shown_BL.size(1)
    memory = reader.empty_memory(len(shown_BL), EvalLengths(mem_len=2 * count))
    for _ in range(count):
        logits_BLV, memory = reader(tokens_BL, memory)
        tokens_BL = logits_BLV[:, -1:].argmax(-1)
        answer.append(tokens_BL)
    return torch.cat(answer, dim=1)


@torch.inference_mode()
def answer_by_rereading(net: TransformerXL, shown_BL: Tensor) -> Tensor:
    """Return the most probable digits; the whole text is read again for each of them."""
    reader, text_BL = CachedReader(net), shown_BL
    for _ in range(shown_BL.size(1)):
        logits_BLV, _ = reader(text_BL, reader.empty_memory(len(text_BL), EvalLengths(mem_len=0)))
        text_BL = torch.cat([text_BL, logits_BLV[:, -1:].argmax(-1)], dim=1)
    return text_BL[:, shown_BL.size(1) :]


def measure_times(args: Namespace) -> dict[str, Any]:
    net, count = train(args, args.seeds[0]), 16 if args.fast else BATCH_SIZE
    lengths = TIMED_LENGTHS[: 2 if args.fast else None]
    rows = [time_answers(net, length, count) for length in lengths]
    return {"kind": "time", "samples": count, "rows": rows}


def time_answers(net: TransformerXL, length: int, count: int) -> dict[str, Any]:
    """Return the fastest seconds of each way of answering, and their ratio."""
    shown_BL = torch.randint(10, (count, length), generator=torch.Generator().manual_seed(1))
    seconds: dict[str, list[float]] = {"memory": [], "rereading": []}
    for _ in range(ROUNDS):
        for way, answer in (("memory", answer_with_memory), ("rereading", answer_by_rereading)):
            began = time.perf_counter()
            answer(net, shown_BL)
            seconds[way].append(time.perf_counter() - began)
    fastest = {f"{way}_seconds": min(each) for way, each in seconds.items()}
    ratio = fastest["rereading_seconds"] / fastest["memory_seconds"]
    return {"length": length, "times": ratio, **fastest}


if __name__ == "__main__":
    main()
