"""What does a small character model learn of Shakespeare, compared with nanoGPT's and labml's?

    python -m experiments.tiny_shakespeare.run [--seeds 1 2 3] [--only KIND ...] [--fast]

Kinds: nanoGPT's CPU example (4 layers of 128, segments of 64, 12 rows, 2,000 steps, AdamW) without
memory ("recipe"); with Muon, the same parameters and tokens, without memory ("plain") and with a
memory of 64 ("memory"); labml's network and schedule for the first 5,000 of its 2 million steps,
with its learned distances ("labml") and with the paper's sinusoids ("sinusoidal").
d_inner is 448 instead of 512, because nanoGPT has no projection of distances. The recipe is also
scored as nanoGPT does: by the mean of 20 random batches of the validation text.
"""

from argparse import Namespace
from typing import Any

import numpy as np
import torch

from experiments import common
from txl_lightning import generate, stream_nats

# nanoGPT validates on the last tenth.
TEXT = {"data.corpus": "tiny_shakespeare", "data.split": [0.9, 0.1, 0.0]}
NET = {"n_layer": 4, "n_head": 4, "d_model": 128, "d_inner": 448, "norm": "pre", "mem_len": 0}
SMALL = TEXT | common.flatten(
    {
        "model.net": NET,
        "data": {"tgt_len": 64, "batch_size": 12},
        "trainer": {"max_steps": 2000, "val_check_interval": 500, "gradient_clip_val": 1.0},
    }
)
ADAMW = {
    "model.optim.name": "adamw",
    "model.optim.lr": 1e-3,
    "model.optim.betas": [0.9, 0.99],
    "model.optim.weight_decay": 0.1,
    "model.optim.warmup_steps": 100,
    "model.optim.min_lr_ratio": 0.1,
}
LABML = TEXT | {
    "config": "configs/labml/tiny_shakespeare.yaml",
    "data.eval_batch_size": 64,
    "trainer.max_steps": 5000,
    "trainer.val_check_interval": 2500,
}
SINUSOIDAL = {"model.net.positions": "sinusoidal", "model.net.clamp_len": None}
KINDS = {
    "memory": SMALL | common.MUON | {"model.net.mem_len": 64},
    "plain": SMALL | common.MUON,
    "recipe": SMALL | ADAMW,
    "labml": LABML,
    "sinusoidal": LABML | SINUSOIDAL,
}
# It needs no download.
FAST = common.FAST | {"data.corpus": "python_source"}
MEM_LENS = {"memory": (0, 64, 128), "labml": (32,), "sinusoidal": (32,)}
"""Memory lengths in evaluation; 0 for kinds trained without memory."""
SHAPE, LABML_SHAPE = {"batch_size": 12, "tgt_len": 64}, {"batch_size": 64, "tgt_len": 2}
"""Rows and segment in evaluation, as in training; more rows for labml's, which is faster."""
BATCHES = 20  # of nanoGPT's evaluation


def main() -> None:
    """Train and evaluate each kind with each seed."""
    args = common.parse_args(__file__, __doc__, vary="weights", kinds=KINDS)
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return validation nats by memory length, the learning curve and a sample."""
    options = KINDS[kind] | (FAST if args.fast else {})
    run = common.train(args, f"{kind} {seed}", seed, options)
    how = {"split": "val"} | (LABML_SHAPE if "config" in options else SHAPE)
    how |= {"max_tokens": 2000} if args.fast else {}
    by_batches = {"nats_of_batches": score_batches(run, seed)} if kind == "recipe" else {}
    return (
        {"kind": kind, "seed": seed}
        | by_batches
        | run.describe("val/nats")
        | {
            "nats_by_mem_len": {
                str(mem_len): run.evaluate(how | {"mem_len": mem_len})["nats"]
                for mem_len in MEM_LENS.get(kind, (0,))
            },
            "sample": sample_text(run),
        }
    )


def score_batches(run: common.TrainedRun, seed: int) -> float:
    """Return the mean nats of random segments of the validation text."""
    rows, length = BATCHES * SHAPE["batch_size"], SHAPE["tgt_len"]
    ids_T = run.store.ids("val")
    start_B = np.random.default_rng(seed).integers(len(ids_T) - length, size=rows)
    ids_BT = ids_T[start_B[:, None] + np.arange(length + 1)]
    how = {"batch_size": rows, "tgt_len": length, "mem_len": 0}
    return stream_nats(run.net, ids_BT.ravel(), **how).double().mean().item()


def sample_text(run: common.TrainedRun) -> str:
    prompt = torch.from_numpy(run.vocab.encode_text("\nROMEO:\n").astype("int64"))
    # Without memory, the last 63 characters are read again for each new one.
    ext_len = 0 if run.net.config.mem_len else 63
    tokens = generate(run.net, prompt, 300, temperature=0.8, seed=1, ext_len=ext_len)
    return run.vocab.decode(tokens.tolist())


if __name__ == "__main__":
    main()
