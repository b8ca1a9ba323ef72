"""Does memory help on Tiny Shakespeare, and how does a network of nanoGPT's size compare with it?

"recipe" is nanoGPT's CPU example, also scored as there: by the mean of 20 random batches of the
validation text. d_inner is 448 instead of 512, because nanoGPT has no projection of distances.
"""

from argparse import Namespace
from typing import Any

import numpy as np

from experiments import common

# nanoGPT validates on the last tenth.
TEXT = {"data.corpus": "tiny_shakespeare", "data.split": [0.9, 0.1, 0.0]}
SHAPE = {"batch_size": 12, "tgt_len": 64}
NET = {"n_layer": 4, "n_head": 4, "d_model": 128, "d_inner": 448, "norm": "pre", "mem_len": 0}
SMALL = common.flatten({"model.net": NET, "data": SHAPE, "trainer": {"gradient_clip_val": 1.0}})
SMALL |= TEXT | common.plan_steps(2000, 4)
ADAMW = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1}
ADAMW |= {"warmup_steps": 100, "min_lr_ratio": 0.1}
KINDS = {
    "memory": SMALL | common.MUON | {"model.net.mem_len": 64},
    "plain": SMALL | common.MUON,
    "recipe": SMALL | common.flatten({"model.optim": ADAMW}),
}
# It needs no download.
FAST = common.FAST | {"data.corpus": "python_source"}
MEM_LENS = {"memory": (0, 64, 128)}
"""Memory lengths in evaluation; 0 for kinds trained without memory."""
BATCHES = 20  # of nanoGPT's evaluation


def main() -> None:
    args = common.parse_args(__file__, __doc__, vary="weights", kinds=KINDS)
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return validation nats by memory length, and the learning curve."""
    options = KINDS[kind] | (FAST if args.fast else {})
    run = common.train(args, f"{kind} {seed}", seed, options)
    nats = {
        str(mem_len): common.score(args, run, split="val", mem_len=mem_len, **SHAPE)["nats"]
        for mem_len in MEM_LENS.get(kind, (0,))
    }
    record = {"kind": kind, "seed": seed, "nats_by_mem_len": nats} | run.describe("val/nats")
    return record | ({"nats_of_batches": score_batches(run, seed)} if kind == "recipe" else {})


def score_batches(run: common.TrainedRun, seed: int) -> float:
    """Return the mean nats of random segments of the validation text."""
    rows, length = BATCHES * SHAPE["batch_size"], SHAPE["tgt_len"]
    ids_T = run.store.ids("val")
    start_B = np.random.default_rng(seed).integers(len(ids_T) - length, size=rows)
    ids_BT = ids_T[start_B[:, None] + np.arange(length + 1)]
    return common.read_rows(run.net, ids_BT, 1, tgt_len=length, mem_len=0).mean().item()


if __name__ == "__main__":
    main()
