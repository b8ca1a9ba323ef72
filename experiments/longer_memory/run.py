"""Why do half of the networks break when memory grows?

    python -m experiments.longer_memory.run [--seeds 31 32 ... 40] [--only KIND ...] [--fast]

Networks, text and updates are those of experiments/copying; README.md has the plan.
"""

from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from experiments import common
from experiments.copying import training
from experiments.copying.rows import MEMORY, Sizes
from experiments.copying.run import METRIC, VALIDATIONS
from experiments.longer_memory.kinds import AFTER, FARTHEST, KINDS, LENGTHS, SEGMENT
from txl_lightning import TransformerXL
from txl_lightning.analysis.attention_distance import HeadSums, sum_attention, summarize_heads
from txl_lightning.data.stream import Stream
from txl_lightning.imports import allow_imports
from txl_lightning.model.config import EvalLengths

SEEDS = tuple(range(31, 41))
ROWS = 8
SEGMENTS = 32
"""Of each row, in which attention is measured."""
PROBE = {"class_path": "experiments.copying.run.CopyProbe"}
DRAW = {"class_path": "experiments.longer_memory.run.RandomMemory"}


class RandomMemory(Callback):
    """Lets each update read a number of the memory's states that is drawn, from none to all.

    A segment is as long as the memory, so that the next one has all its states again.
    """

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        bank = module.memory_bank
        if memory := bank.committed.get(("train", 0)):
            drawn = draw_length(module.net.config.mem_len, trainer.global_step)
            filled_B = memory.filled_B.clamp(max=drawn)
            bank.committed["train", 0] = replace(memory, filled_B=filled_B)


def draw_length(longest: int, step: int) -> int:
    """Return a length from 0 to the longest one: the same for a step that is resumed."""
    generator = torch.Generator().manual_seed(step)
    return int(torch.randint(longest + 1, (), generator=generator))


def main() -> None:
    precision = {"default": "bf16-mixed"}
    args = common.parse_args(__file__, __doc__, SEEDS, kinds=KINDS, precision=precision)
    allow_imports(["experiments"])
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return perplexities of the test text by length of memory, and what may predict them."""
    sizes = training.choose_sizes(args)
    run = train(args, kind, seed, sizes)
    net = run.net.to(args.device)
    test_PT = training.cut_pieces(run.store, "test", sizes)
    perplexity = {"as is": score_lengths(net, test_PT, sizes, None)}
    if KINDS[kind].has_clamped_reading:
        perplexity["clamped"] = score_lengths(net, test_PT, sizes, FARTHEST)
    attention = measure_attention(net, run.store.ids("val"))
    fields = {"kind": kind, "seed": seed, "perplexity": perplexity, "attention": attention}
    return fields | run.describe(METRIC)


def train(args: Namespace, kind: str, seed: int, sizes: Sizes) -> common.TrainedRun:
    how = KINDS[kind]
    options = training.make_fit_options(MEMORY, sizes, seed) | training.make_text_options(sizes)
    options |= common.plan_steps(sizes.steps, VALIDATIONS) | {"allow_imports": "experiments"}
    options |= how.options
    options["trainer.callbacks"] = [PROBE, DRAW] if how.draws_memory else [PROBE]
    return common.train(args, f"{kind} {seed}", seed, options)


def score_lengths(
    net: TransformerXL, ids_PT: np.ndarray, sizes: Sizes, clamp_len: int | None
) -> dict[str, float]:
    """Return the perplexity of pieces of text by length of memory.

    Each token attends to as many states as the memory has; distances may be clamped.
    """
    before = max(sizes.memory_lens)
    how = {"tgt_len": net.config.mem_len, "same_length": "mem_len", "clamp_len": clamp_len}
    nats = {n: common.read_rows(net, ids_PT, before, mem_len=n, **how) for n in LENGTHS}
    return {str(n): nats_PT.mean().exp().item() for n, nats_PT in nats.items()}


def measure_attention(net: TransformerXL, ids: np.ndarray) -> dict[str, float]:
    """Return how far back heads attend as trained, and their share beyond it with more memory.

    Both are means over the heads of all layers; distances are tokens.
    """
    short = sum_heads(net, ids, EvalLengths())
    rows = summarize_heads(short)
    with_more = sum_heads(net, ids, EvalLengths(AFTER, None, "mem_len"))
    long_HS = torch.cat([sums.distance_HS for sums in with_more])
    beyond_H = long_HS[:, FARTHEST + 1 :].sum(dim=1) / long_HS.sum(dim=1)
    distance = float(np.mean([row["mean"] for row in rows]))
    return {"distance": distance, "beyond": beyond_H.mean().item()}


def sum_heads(net: TransformerXL, ids: np.ndarray, lengths: EvalLengths) -> list[HeadSums]:
    """Return each layer's sums of attention weights by distance, with a full memory."""
    memory = net.empty_memory(ROWS, lengths)
    n_warmup = AFTER // SEGMENT
    n_segment = n_warmup + SEGMENTS
    stream = Stream.from_tokens(ids[: ROWS * (n_segment * SEGMENT + 1)], ROWS, SEGMENT)
    return sum_attention(net, map(stream.segment, range(n_segment)), memory, n_warmup)


if __name__ == "__main__":
    main()
