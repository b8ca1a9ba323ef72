"""Does it sort digits, and does it answer with a memory as when it reads everything again?

    python -m experiments.sorting.run [--seeds 1 2 3] [--fast] [--time]

The task and the network of augustwester/transformer-xl: 20 digits are answered by the same in
order. Otherwise than there: samples that never come twice (theirs are 50,000, 16 times), Muon, a
cosine, 1,500 steps of 128 samples (theirs 6,256). --time adds the time of answering, by length;
the machine must be quiet for it.
"""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.common import (
    checkpoint,
    count_parameters,
    fit,
    load_records,
    parse_options,
    save_record,
)
from txl_lightning import CorpusDataModule, TransformerXL
from txl_lightning.checkpoints import load_run
from txl_lightning.model import CachedReader, EvalLengths

LENGTH = 20
OPTIONS = {
    "config": "configs/tasks/sort.yaml",
    # Each sample is one segment, so that training needs no memory.
    "model.net.mem_len": 0,
    "data.task.n_train": None,
    "model.optim.name": "muon",
    "model.optim.lr": 3e-3,
    "model.optim.muon_lr": 1e-2,
    "model.optim.betas": [0.9, 0.95],
    "model.optim.schedule": "cosine",
    "model.optim.warmup_steps": 50,
    "trainer.max_steps": 1500,
    "trainer.val_check_interval": 500,
}
FAST = {"trainer.max_steps": 4, "trainer.val_check_interval": 4, "data.batch_size": 8}
N_SAMPLE, AT_ONCE = 5000, 1000
"""Samples that are answered, and how many of them together: as in the blog."""
LENGTHS, ROUNDS = (10, 20, 40), 5
"""Digits of the samples whose answers are timed, AT_ONCE together, and how often."""


def main() -> None:
    """Train, answer, and compare the answers."""
    clock = {"action": "store_true", "help": "time the answers of the first seed's network"}
    given = parse_options(__file__, __doc__, time=clock)
    for seed in given.seeds:
        if (name := f"seed {seed}") not in load_records(given.out):
            path = train(given, seed)
            found = compare_answers(path, 64 if given.fast else N_SAMPLE)
            about = {"seed": seed, "options": choose_options(given, seed)}
            about |= {"parameters": count_parameters(path)}
            save_record(given, name, kind="answers", **about, **found)
    if given.time:
        net, _ = load_run(train(given, given.seeds[0]))
        count = 16 if given.fast else AT_ONCE
        rows = [time_answers(net, length, count) for length in LENGTHS[: 2 if given.fast else None]]
        save_record(given, "time", kind="time", samples=count, rows=rows)


def train(given: Namespace, seed: int) -> Path:
    """Return the checkpoint of a seed, trained if it is not there."""
    return checkpoint(fit(given.runs / f"seed_{seed}", choose_options(given, seed)), "last")


def choose_options(given: Namespace, seed: int) -> dict[str, Any]:
    options = {"seed_everything": seed, "trainer.precision": given.precision}
    return OPTIONS | options | (FAST if given.fast else {})


def compare_answers(path: Path, count: int) -> dict[str, Any]:
    """Return shares of right digits and answers of fresh samples, with a memory and without."""
    net, _ = load_run(path)
    # Of the test split, which shares no random numbers with training.
    data = CorpusDataModule(corpus="sort", task={"n_eval": count})
    examples = torch.from_numpy(data.store.text("test").ids_at(all_places(count)).astype("int64"))
    shown_BL, right_BL = examples[:, :LENGTH], examples[:, LENGTH:]
    memory_BL, reread_BL = answer_all(net, shown_BL)
    found = {"samples": count, "identical": share((memory_BL == reread_BL).all(1))}
    for way, answer_BL in (("memory", memory_BL), ("rereading", reread_BL)):
        is_right_BL = answer_BL == right_BL
        found[f"{way}_accuracy"] = share(is_right_BL.all(1))
        found[f"{way}_digit_accuracy"] = is_right_BL.double().mean(0).tolist()
    return found


def all_places(count: int) -> Any:
    return torch.arange(count * 2 * LENGTH).view(count, 2 * LENGTH).numpy()


def share(is_so: Tensor) -> float:
    return is_so.double().mean().item()


def answer_all(net: TransformerXL, shown_BL: Tensor) -> tuple[Tensor, Tensor]:
    parts = [(answer_with_memory(net, p), answer_by_rereading(net, p)) for p in batches(shown_BL)]
    with_memory, by_rereading = zip(*parts, strict=True)
    return torch.cat(with_memory), torch.cat(by_rereading)


def batches(shown_BL: Tensor) -> tuple[Tensor, ...]:
    return shown_BL.split(AT_ONCE)


@torch.inference_mode()
def answer_with_memory(net: TransformerXL, shown_BL: Tensor) -> Tensor:
    """Return the likeliest digits; each token is read once."""
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
    """Return the likeliest digits; the growing text is read again for each of them."""
    reader, text_BL = CachedReader(net), shown_BL
    for _ in range(shown_BL.size(1)):
        logits_BLV, _ = reader(text_BL, reader.empty_memory(len(text_BL), EvalLengths(mem_len=0)))
        text_BL = torch.cat([text_BL, logits_BLV[:, -1:].argmax(-1)], dim=1)
    return text_BL[:, shown_BL.size(1) :]


def time_answers(net: TransformerXL, length: int, count: int) -> dict[str, Any]:
    """Return the seconds of answering, the fastest of some rounds in turns."""
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
