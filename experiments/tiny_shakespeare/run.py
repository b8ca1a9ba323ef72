"""What does a small character model learn of Shakespeare, beside nanoGPT's and labml's?

    python -m experiments.tiny_shakespeare.run [--seeds 1 2 3] [--only KIND ...] [--fast]

Kinds: nanoGPT's CPU example (4 layers of 128, segments of 64, 12 rows, 2,000 steps, AdamW) as it is
there, without a memory ("recipe"); at as many weights and tokens ours, with Muon, without a memory
("plain") and with one of 64 ("memory"). labml's network and schedule for the first 5,000 of its 2
million steps, with its learned distances ("labml") and with the paper's ("sinusoidal").
d_inner 448, not 512, makes room for the keys of distances, which nanoGPT lacks.
"""

from pathlib import Path
from typing import Any

import torch

from experiments.common import (
    checkpoint,
    count_parameters,
    curve,
    evaluate,
    fit,
    load_records,
    parse_options,
    save_record,
)
from txl_lightning import generate
from txl_lightning.checkpoints import load_run

# nanoGPT validates on the last tenth.
TEXT = {"data.corpus": "tiny_shakespeare", "data.split": [0.9, 0.1, 0.0]}
SMALL = TEXT | {
    "model.net.n_layer": 4,
    "model.net.n_head": 4,
    "model.net.d_model": 128,
    "model.net.d_inner": 448,
    "model.net.norm": "pre",
    "model.net.mem_len": 0,
    "data.tgt_len": 64,
    "data.batch_size": 12,
    "trainer.max_steps": 2000,
    "trainer.val_check_interval": 500,
    "trainer.gradient_clip_val": 1.0,
}
ADAMW = {
    "model.optim.name": "adamw",
    "model.optim.lr": 1e-3,
    "model.optim.betas": [0.9, 0.99],
    "model.optim.weight_decay": 0.1,
    "model.optim.warmup_steps": 100,
    "model.optim.min_lr_ratio": 0.1,
}
# The quickstart's.
MUON = {
    "model.net.init_std": 0.05,
    "model.optim.name": "muon",
    "model.optim.lr": 6e-3,
    "model.optim.muon_lr": 12e-3,
    "model.optim.betas": [0.9, 0.95],
    "model.optim.weight_decay": 0.25,
    "model.optim.warmup_steps": 100,
}
LABML = TEXT | {
    "config": "configs/labml/tiny_shakespeare.yaml",
    "data.eval_batch_size": 64,
    "trainer.max_steps": 5000,
    "trainer.val_check_interval": 2500,
}
SINUSOIDAL = {"model.net.positions": "sinusoidal", "model.net.clamp_len": None}
KINDS = {
    "memory": SMALL | MUON | {"model.net.mem_len": 64},
    "plain": SMALL | MUON,
    "recipe": SMALL | ADAMW,
    "labml": LABML,
    "sinusoidal": LABML | SINUSOIDAL,
}
SHAPE = {"batch_size": 12, "tgt_len": 64}
"""Of evaluation, as in training; labml's has more rows, which are faster."""
FAST = {
    # It needs no download.
    "data.corpus": "python_source",
    "data.vocab": "bytes",
    "trainer.max_steps": 4,
    "trainer.val_check_interval": 4,
    "trainer.limit_val_batches": 2,
}
MEM_LENS = {"memory": (0, 64, 128), "labml": (32,), "sinusoidal": (32,)}
"""What is remembered in evaluation; nothing of those trained without."""


def main() -> None:
    """Train every kind with every seed."""
    only = {"nargs": "+", "choices": list(KINDS), "help": "kinds to train", "default": list(KINDS)}
    given = parse_options(__file__, __doc__, only=only)
    for seed in given.seeds:
        for kind in given.only:
            if f"{kind} {seed}" not in load_records(given.out):
                measure(given, kind, seed)


def measure(given: Any, kind: str, seed: int) -> None:
    """Train, evaluate on the validation text by length of memory, sample, record."""
    options = KINDS[kind] | {"seed_everything": seed, "trainer.precision": given.precision}
    options |= FAST if given.fast else {}
    folder = fit(given.runs / f"{kind}_{seed}", options)
    path = checkpoint(folder, "last")
    shape = {"batch_size": 64, "tgt_len": 2} if "config" in options else SHAPE
    how = {"split": "val"} | shape
    how |= {"max_tokens": 2000} if given.fast else {}
    nats = {}
    for mem_len in MEM_LENS.get(kind, (0,)):
        nats[str(mem_len)] = evaluate(path, how | {"mem_len": mem_len})["nats"]
    found = {"nats_by_mem_len": nats, "curve": curve(folder, "val/nats"), "sample": sample(path)}
    about = {"kind": kind, "seed": seed, "options": options}
    save_record(given, f"{kind} {seed}", **about, parameters=count_parameters(path), **found)


def sample(path: Path) -> str:
    model, vocab = load_run(path)
    prompt = torch.from_numpy(vocab.encode_text("\nROMEO:\n").astype("int64"))
    # Without a memory, a text is read again for each character.
    ext_len = 0 if model.config.mem_len else 63
    return vocab.decode(
        generate(model, prompt, 300, temperature=0.8, seed=1, ext_len=ext_len).tolist()
    )


if __name__ == "__main__":
    main()
