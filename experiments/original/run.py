"""Do the original code and this one reach the same loss on WikiText-2, in the same minutes?

    python -m experiments.original.run --original FOLDER [--seeds 1 2 3 4 5] [--only ours] [--fast]

FOLDER is a clone of github.com/kimiyoung/transformer-xl. README.md has the setting.
"""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR

from experiments import common
from experiments.speed.contestants import build_original
from txl_lightning import CorpusDataModule, TransformerXLConfig
from txl_lightning.errors import print_notice
from txl_lightning.model import find_device

KINDS = ("ours", "original")
SEGMENT = 64
ROWS = 16
STEPS = 2930
RATE = 5e-4
CLIP = 0.25
NET = {"n_layer": 6, "n_head": 8, "d_model": 256, "d_head": 32, "d_inner": 1024, "d_embed": 256}
NET |= {"mem_len": 64, "dropout": 0.1, "cutoffs": [2000, 10000], "div_val": 1}
DATA = {"corpus": "wikitext2", "tgt_len": SEGMENT, "batch_size": ROWS}
# It needs no download.
FAST_NET = {"n_layer": 1, "d_model": 16, "d_embed": 16, "d_inner": 16, "cutoffs": [50, 90]}
FAST_DATA = {"corpus": "python_source", "vocab": "bytes"}


def main() -> None:
    """Train both with each seed, and score the test text."""
    # That of the original code, which is trained as its train.py does without --fp16.
    own = {"precision": {"choices": ["32-true"]}}
    own["original"] = {"type": Path, "help": "a clone of the original code; left out, only ours"}
    args = common.parse_args(__file__, __doc__, (1, 2, 3, 4, 5), "weights", KINDS, **own)
    if args.original is None and "original" in args.only:
        print_notice("original: left out; expected --original, a clone of its code")
        args.only = [kind for kind in args.only if kind == "ours"]
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return nats of a word of the test text, and the seconds of training."""
    found = measure_ours(args, seed) if kind == "ours" else measure_original(args, seed)
    return {"kind": kind, "seed": seed} | found


def choose_sizes(args: Namespace) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the settings of network and data, and the number of steps."""
    return (NET | FAST_NET, DATA | FAST_DATA, 4) if args.fast else (NET, DATA, STEPS)


def measure_ours(args: Namespace, seed: int) -> dict[str, Any]:
    net, data, steps = choose_sizes(args)
    sections = {
        "model.net": net,
        "model.optim": {"name": "adam", "lr": RATE, "schedule": "cosine"},
        "data": data,
        "trainer": {"gradient_clip_val": CLIP, "limit_val_batches": 1},
    }
    options = common.flatten(sections) | common.plan_steps(steps)
    run = common.train(args, f"ours {seed}", seed, options)
    test = common.score(args, run, split="test", batch_size=ROWS, tgt_len=SEGMENT)
    return run.describe() | {"nats": test["nats"]}


def measure_original(args: Namespace, seed: int) -> dict[str, Any]:
    sizes, text, steps = choose_sizes(args)
    data = CorpusDataModule(**text)
    torch.manual_seed(seed)
    ours = TransformerXLConfig(n_token=data.vocab.n_token, **sizes).build()
    net = build_original(args.original, ours, SEGMENT).to(args.device)
    began = time.monotonic()
    train_original(net, data.train_dataloader().stream, steps)
    seconds = time.monotonic() - began
    parameters = sum(parameter.numel() for parameter in net.parameters())
    nats = score_original(net, data, 2000 if args.fast else None)
    fields = {"text": data.store.manifest["text"], "parameters": parameters}
    return fields | {"nats": nats, "training_seconds": seconds}


def train_original(net: nn.Module, stream: Any, steps: int) -> None:
    """Train as the original's train.py does."""
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    scheduler = CosineAnnealingLR(optimizer, steps)
    memory: tuple[Tensor, ...] = ()
    net.train()
    device = find_device(net)
    for step in range(steps):
        segment = stream.segment(step)
        tokens_LB = segment.tokens_BL.T.contiguous().to(device)
        targets_LB = segment.targets_BL.T.contiguous().to(device)
        nats_LB, *memory = net(tokens_LB, targets_LB, *memory)
        nats_LB.float().mean().backward()
        clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


@torch.inference_mode()
def score_original(net: nn.Module, data: CorpusDataModule, most: int | None) -> float:
    """Return the mean nats of the test text, in the rows and segments of training."""
    device = find_device(net)
    ids = torch.from_numpy(data.store.ids("test")[:most].astype("int64")).to(device)
    rows_BT = ids[: len(ids) // ROWS * ROWS].view(ROWS, -1)
    total = 0.0
    count = 0
    memory = ()
    net.eval()
    for start in range(0, rows_BT.size(1) - 1, SEGMENT):
        part_BL = rows_BT[:, start : start + SEGMENT + 1]
        tokens_LB = part_BL[:, :-1].T
        targets_LB = part_BL[:, 1:].T
        nats_LB, *memory = net(tokens_LB.contiguous(), targets_LB.contiguous(), *memory)
        total += nats_LB.double().sum().item()
        count += nats_LB.numel()
    return total / count


if __name__ == "__main__":
    main()
