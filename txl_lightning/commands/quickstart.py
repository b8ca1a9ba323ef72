"""quickstart: train for five minutes, and see what memory is worth."""

import math
import time
import timeit
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import yaml

from ..errors import flatten_settings, require, show_controls
from ..evaluation.scoring import stream_nats
from ..files import find_config, load_yaml
from ..generation import generate
from ..model import TransformerXL

if TYPE_CHECKING:
    from ..data.datamodule import CorpusDataModule

PROMPT_LEN = 300
"""Tokens of the test text before the sample: a memory that is nearly empty is rare in training."""
SECONDS = 30
"""Time for each measurement of the test text; a slow machine scores a part of it."""
N_TRIED = 10_000
"""Tokens by which its speed is known."""


def quickstart_command(config: str = "quickstart") -> None:
    """Train for five minutes on this Python's own source, and measure what memory is worth.

    Where this machine multiplies bfloat16 faster, it trains in that. Then, in two minutes at most,
    it scores the test text with its memory and without, continues it, and says what to type next.

    Args:
        config: Another run: a file, or a name that txl-lightning configs lists.
    """
    # Lightning takes seconds, which --help need not wait for.
    from ..training.callbacks.run_folder import run_folder
    from ..training.cli import run_trainer

    path = Path(find_config(config))
    require(path.is_file(), "config", config, "a file, or a name that txl-lightning configs lists")
    began = time.perf_counter()
    cli = run_trainer(["fit", f"--config={path}", *choose_precision(path)])
    minutes, folder = (time.perf_counter() - began) / 60, run_folder(cli.trainer)
    print(f"\ntrained for {minutes:.1f} minutes; on one page: {folder / 'report.html'}\n")
    measure_memory(cli.datamodule, cli.model.net)
    print_sample(cli.datamodule, cli.model.net)
    print_next_commands(folder)


def choose_precision(path: Path) -> list[str]:
    """Return options for bfloat16 on a CPU that multiplies it faster, as with AMX."""
    try:
        settings = flatten_settings(load_yaml(path.read_bytes()))
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError):
        # What is wrong with the file, fit says.
        return []
    if settings.get("trainer.accelerator") != "cpu":
        return []
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(512, 512, dtype=dtype)
        seconds.append(min(timeit.repeat(lambda x=x: x @ x, number=3, repeat=10)))
    ratio = seconds[0] / seconds[1]
    print(f"products in bfloat16 take 1/{ratio:.1f} of the time of float32")
    return ["--trainer.precision=bf16-mixed"] if ratio > 1.5 else []


def measure_memory(data: "CorpusDataModule", model: TransformerXL) -> None:
    """Print bits per byte of the test text with twice the trained memory, with it, and without."""
    ids, how, trained = data.store.ids("test"), data.config, model.config.mem_len
    shape = {"batch_size": how.eval_batch_size, "tgt_len": how.eval_tgt_len}
    began = time.perf_counter()
    stream_nats(model, ids[:N_TRIED], **shape, mem_len=2 * trained)
    some = ids[: int(N_TRIED * SECONDS / (time.perf_counter() - began))]
    size = data.bytes_per_token("test")
    print(f"held-out test text, {len(some):,} of {len(ids):,} tokens, {size:.2f} bytes each:")
    for mem_len in (2 * trained, trained, 0):
        nats = stream_nats(model, some, **shape, mem_len=mem_len).mean(dtype=torch.float64).item()
        print(f"  mem_len {mem_len:4d}   {nats / math.log(2) / size:.3f} bits per byte", flush=True)


def print_sample(data: "CorpusDataModule", model: TransformerXL) -> None:
    prompt = torch.from_numpy(data.store.ids("test")[:PROMPT_LEN].astype(np.int64))
    ids = generate(model, prompt, 200, temperature=0.9, seed=1)
    before, after = data.vocab.decode(prompt[-40:].tolist()), data.vocab.decode(ids.tolist())
    text = show_controls(f"{before}###{after}", kept="\n\t")
    print(f"\nthe test text, and after ### how the model goes on:\n\n{text}")


def print_next_commands(folder: Path) -> None:
    checkpoint = folder / "checkpoints" / "last.ckpt"
    given = f"--config {folder}/config.yaml --ckpt_path {checkpoint}"
    print("\ncontinue, test with a longer memory, sample:\n")
    print(f"  txl-lightning fit {given} --plan.minutes 10")
    print(f"  txl-lightning test {folder} --model.eval_mem_len 512")
    print(f"  txl-lightning generate {folder} --prompt 'import os'")
