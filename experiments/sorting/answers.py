"""Two ways to answer: each token read once, with memory, or the whole text again for each digit."""

import time
from typing import Any

import torch
from torch import Tensor

from txl_lightning import TransformerXL
from txl_lightning.model import CachedReader, EvalLengths

BATCH_SIZE = 1000  # samples that are answered at once, as in the blog
ROUNDS = 5  # each way of answering is timed in every round; the fastest counts


def score_answers(net: TransformerXL, shown_BL: Tensor, right_BL: Tensor) -> dict[str, Any]:
    """Return shares of right digits and answers, with memory and by rereading."""
    parts = shown_BL.split(BATCH_SIZE)
    answers = {
        "memory": torch.cat([answer_with_memory(net, part_BL) for part_BL in parts]),
        "rereading": torch.cat([answer_by_rereading(net, part_BL) for part_BL in parts]),
    }
    scores = {"identical": mean_share((answers["memory"] == answers["rereading"]).all(1))}
    for way, answer_BL in answers.items():
        is_right_BL = answer_BL == right_BL
        scores[f"{way}_accuracy"] = mean_share(is_right_BL.all(1))
        scores[f"{way}_digit_accuracy"] = is_right_BL.double().mean(0).tolist()
    return scores


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


def time_answers(net: TransformerXL, length: int, count: int) -> dict[str, Any]:
    """Return the fastest seconds of each way of answering, and their ratio."""
    shown_BL = torch.randint(10, (count, length), generator=torch.Generator().manual_seed(1))
    ways = {"memory": answer_with_memory, "rereading": answer_by_rereading}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, answer in ways.items():
            began = time.perf_counter()
            answer(net, shown_BL)
            seconds[way].append(time.perf_counter() - began)
    fastest = {f"{way}_seconds": min(times) for way, times in seconds.items()}
    ratio = fastest["rereading_seconds"] / fastest["memory_seconds"]
    return {"length": length, "times": ratio, **fastest}
