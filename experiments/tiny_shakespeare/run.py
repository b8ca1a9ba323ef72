"""Does memory help on Tiny Shakespeare, in a network of the size of nanoGPT's CPU example?

d_inner is 448 instead of 512, because nanoGPT has no projection of distances.
"""

from argparse import Namespace
from typing import Any

from experiments import common

SHAPE = {"batch_size": 12, "tgt_len": 64}
NET = {"n_layer": 4, "n_head": 4, "d_model": 128, "d_inner": 448, "norm": "pre"}
OPTIONS = {
    **common.MUON,
    **common.flatten({"model.net": NET, "data": SHAPE, "trainer": {"gradient_clip_val": 1.0}}),
    **common.plan_steps(2000, 4),
    "data.corpus": "tiny_shakespeare",
    # nanoGPT validates on the last tenth.
    "data.split": [0.9, 0.1, 0.0],
}
SEEDS = tuple(range(1, 11))
KINDS = {"memory": {"model.net.mem_len": 64}, "plain": {"model.net.mem_len": 0}}
MEM_LENS = {"memory": (0, 64, 128), "plain": (0,)}
"""Memory lengths in evaluation."""
# It needs no download.
FAST = common.FAST | {"data.corpus": "python_source"}


def main() -> None:
    args = common.parse_args(__file__, __doc__, SEEDS, vary="weights", kinds=KINDS)
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return validation nats by memory length, and the learning curve."""
    options = OPTIONS | KINDS[kind] | (FAST if args.fast else {})
    run = common.train(args, f"{kind} {seed}", seed, options)
    nats = {
        str(mem_len): common.score(args, run, split="val", mem_len=mem_len, **SHAPE)["nats"]
        for mem_len in MEM_LENS[kind]
    }
    return {"kind": kind, "seed": seed, "nats_by_mem_len": nats} | run.describe("val/nats")


if __name__ == "__main__":
    main()
