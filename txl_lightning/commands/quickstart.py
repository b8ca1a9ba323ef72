"""quickstart: train for five minutes, then test with and without memory."""

import math
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.tokens import TextTokens
from ..errors import require, show_controls
from ..evaluation.protocols import Protocol
from ..evaluation.tuning import CACHE_LEN, Limit, score_in_turns
from ..generation import generate
from ..model import TransformerXL, has_bfloat16_units
from ..model.adaptation import Adaptation
from ..runs.folder import CHECKPOINTS, CONFIG, LAST, REPORT, run_folder

if TYPE_CHECKING:
    from ..data.datamodule import CorpusDataModule

PROMPT_LEN = 300  # tokens of the test text before the sample, which fill the memory as in training
SECONDS = 50  # for the test text, twice; a slow machine scores the beginnings of its rows


def quickstart_command(config: str = "quickstart") -> None:
    """Train for five minutes on the source of this Python, then test with and without memory.

    Training is in bfloat16 if this machine multiplies it faster. The tests take at most two
    minutes; then the test text is continued, and commands to try next are printed.

    Args:
        config: Another run on a text: a file, or a name that txl-lightning configs lists.
    """
    # Importing Lightning takes seconds, and --help does not need it.
    from ..training.cli import run_trainer
    from ..training.settings import read_config

    given = read_config(config).flat
    began = time.perf_counter()
    words = ["fit", f"--config={config}", *choose_precision(given)]
    trainer = run_trainer(words, check=partial(require_test_text, config))
    minutes = (time.perf_counter() - began) / 60
    folder = run_folder(trainer)
    report = folder / REPORT
    page = f"; on one page: {report}" if report.is_file() else ""
    print(f"\ntrained for {minutes:.1f} minutes{page}\n")
    data = trainer.datamodule
    model = trainer.lightning_module.net
    measure_memory(data, model)
    measure_adaptation(data, model)
    print_sample(data, model)
    print_next_commands(folder)


def require_test_text(config: str, data: "CorpusDataModule") -> None:
    """Refuse a task, ids of an unknown text, and an empty split before training on them."""
    n_byte = data.bytes_per_token("test")
    require(bool(n_byte), "config", config, "one with a text to test")


def choose_precision(given: Mapping[str, Any]) -> list[str]:
    """Return an option for bfloat16 where a CPU multiplies it faster, if no precision is given."""
    if "trainer.precision" in given:
        return []
    is_cpu = given.get("trainer.accelerator") == "cpu"
    is_faster = is_cpu and has_bfloat16_units(torch.device("cpu"))
    return ["--trainer.precision=bf16-mixed"] if is_faster else []


def measure_memory(
    data: "CorpusDataModule", model: TransformerXL, clock: Callable[[], float] = time.monotonic
) -> None:
    """Print bits per byte of the test text with twice the trained memory, with it, and without."""
    ids = data.store.ids("test")
    trained = model.config.mem_len
    size = data.bytes_per_token("test")
    notes = {2 * trained: "", trained: ", as trained", 0: ", the same network without its memory"}
    shape = {"batch_size": data.config.eval_batch_size, "tgt_len": data.config.eval_tgt_len}
    ways = [Protocol(mem_len=mem_len, drop_last=True, **shape) for mem_len in notes]
    n_scored, nats = score_in_turns(model, TextTokens(ids), ways, Limit(SECONDS, clock=clock))
    n_read = n_scored + shape["batch_size"]  # the first token of each row is not scored
    print(f"held-out test text, {n_read:,} of {len(ids):,} tokens, {size:.2f} bytes each:")
    for (mem_len, note), total in zip(notes.items(), nats, strict=True):
        bits = f"{total / n_scored / math.log(2) / size:.3f} bits per byte"
        print(f"  mem_len {mem_len:4d}   {bits}{note}", flush=True)
    if share := data.unknown_share("test"):
        print(f"{share:.1%} of the tokens are unknown, which makes their loss small")
    print("(a network that was trained without memory, --model.net.mem_len 0, is usually better)")


def measure_adaptation(
    data: "CorpusDataModule", model: TransformerXL, clock: Callable[[], float] = time.monotonic
) -> None:
    """Print bits per byte of the test text in one row, without and with adaptation."""
    ids = data.store.ids("test")
    size = data.bytes_per_token("test")
    static = Protocol(tgt_len=data.config.eval_tgt_len)
    adaptation = Adaptation(cache_len=CACHE_LEN, rate=0.1)
    ways = [static, replace(static, adaptation=adaptation)]
    n_scored, nats = score_in_turns(model, TextTokens(ids), ways, Limit(SECONDS, clock=clock))
    bits = [total / n_scored / math.log(2) / size for total in nats]
    print(f"in one row, {n_scored + 1:,} tokens:")
    print(f"  static         {bits[0]:.3f} bits per byte")
    print(
        f"  adapted        {bits[1]:.3f} bits per byte ({adaptation.describe()})",
        flush=True,
    )


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
