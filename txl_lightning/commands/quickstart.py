"""quickstart: train for five minutes, then test with and without memory."""

import math
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import yaml

from ..errors import flatten_settings, require, show_controls
from ..evaluation.scoring import stream_nats
from ..files import find_config, load_yaml
from ..generation import generate
from ..model import TransformerXL, has_bfloat16_units
from ..runs.folder import CHECKPOINTS, CONFIG, LAST, run_folder

if TYPE_CHECKING:
    from ..data.datamodule import CorpusDataModule

PROMPT_LEN = 300  # tokens of the test text before the sample, which fill the memory as in training
SECONDS = 30  # time for each measurement of the test text; a slow machine scores a part of it
N_TIMED = 10_000  # tokens that are scored to measure the speed


def quickstart_command(config: str = "quickstart") -> None:
    """Train for five minutes on the source of this Python, then test with and without memory.

    Training is in bfloat16 if this machine multiplies it faster. The tests take at most two
    minutes; then the test text is continued, and commands to try next are printed.

    Args:
        config: Another run: a file, or a name that txl-lightning configs lists.
    """
    # Importing Lightning takes seconds, and --help does not need it.
    from ..training.cli import run_trainer

    path = Path(find_config(config))
    require(path.is_file(), "config", config, "a file, or a name that txl-lightning configs lists")
    began = time.perf_counter()
    trainer = run_trainer(["fit", f"--config={path}", *choose_precision(path)])
    minutes, folder = (time.perf_counter() - began) / 60, run_folder(trainer)
    print(f"\ntrained for {minutes:.1f} minutes; on one page: {folder / 'report.html'}\n")
    data, model = trainer.datamodule, trainer.lightning_module.net
    measure_memory(data, model)
    print_sample(data, model)
    print_next_commands(folder)


def choose_precision(path: Path) -> list[str]:
    """Return options for bfloat16 on a CPU that multiplies it faster, for example with AMX."""
    try:
        settings = flatten_settings(load_yaml(path.read_bytes()))
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError):
        # fit explains what is wrong with the file.
        return []
    is_on_cpu = settings.get("trainer.accelerator") == "cpu"
    is_faster = is_on_cpu and has_bfloat16_units(torch.device("cpu"))
    return ["--trainer.precision=bf16-mixed"] if is_faster else []


def measure_memory(data: "CorpusDataModule", model: TransformerXL) -> None:
    """Print bits per byte of the test text with twice the trained memory, with it, and without."""
    all_ids, trained = data.store.ids("test"), model.config.mem_len
    shape = {"batch_size": data.config.eval_batch_size, "tgt_len": data.config.eval_tgt_len}
    began = time.perf_counter()
    stream_nats(model, all_ids[:N_TIMED], **shape, mem_len=2 * trained)
    ids = all_ids[: int(N_TIMED * SECONDS / (time.perf_counter() - began))]
    size = data.bytes_per_token("test")
    print(f"held-out test text, {len(ids):,} of {len(all_ids):,} tokens, {size:.2f} bytes each:")
    notes = {2 * trained: "", trained: ", as trained", 0: ", the same network without its memory"}
    for mem_len, note in notes.items():
        nats = stream_nats(model, ids, **shape, mem_len=mem_len).mean(dtype=torch.float64).item()
        bits = f"{nats / math.log(2) / size:.3f} bits per byte"
        print(f"  mem_len {mem_len:4d}   {bits}{note}", flush=True)
    print("(a network trained without memory, --model.net.mem_len 0, usually loses less)")


def print_sample(data: "CorpusDataModule", model: TransformerXL) -> None:
    prompt = torch.from_numpy(data.store.ids("test")[:PROMPT_LEN].astype(np.int64))
    ids = generate(model, prompt, 200, temperature=0.9, seed=1)
    end, continuation = (data.vocab.decode(x.tolist()) for x in (prompt[-40:], ids))
    text = show_controls(f"{end}###{continuation}", kept="\n\t")
    print(f"\nthe test text, and after ### the model's continuation:\n\n{text}")


def print_next_commands(folder: Path) -> None:
    paths = folder, folder / CHECKPOINTS / LAST, folder / CONFIG
    run, checkpoint, config = (shlex.quote(str(path)) for path in paths)
    print("\nto continue training, test with a longer memory, or sample:\n")
    print(f"  txl-lightning fit --config {config} --ckpt_path {checkpoint} --plan.minutes 10")
    print(f"  txl-lightning test {run} --model.eval_mem_len 512")
    print(f"  txl-lightning generate {run} --prompt 'import os'")
