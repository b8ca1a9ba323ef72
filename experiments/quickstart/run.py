"""What do five minutes on two cores learn, and what does memory add?

    python experiments/quickstart/run.py [--config FILE]

Trains configs/quickstart.yaml (or another run) in as many steps as this machine takes in its
plan.minutes, and in bfloat16 where that multiplies faster. Then, at most two minutes more, it
scores the held-out test text with the memory and without, prints a sample, and says how to go on.
"""

import argparse
import math
import sys
import time
import timeit
from pathlib import Path

import torch
import yaml

from txl_lightning import CorpusDataModule, generate, stream_nats
from txl_lightning.__main__ import run
from txl_lightning.checkpoints import load_run
from txl_lightning.training.cli import TRAINER_DEFAULTS

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
PROMPT_LEN = 300
"""Tokens of the test text before the sample: a memory that is nearly empty is rare in training."""
SECONDS = 30
"""Time for each measurement of the test text; a slow machine scores a part of it."""
N_TRIED = 10_000
"""Tokens by which its speed is known."""


def main() -> None:
    """Train, measure, sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=CONFIG, help="the run")
    config = parser.parse_args().config
    began = time.perf_counter()
    try:
        run(["fit", "--config", str(config), *precision(config)])
    except ValueError as error:
        parser.error(str(error))
    minutes = (time.perf_counter() - began) / 60
    folder = newest(runs_of(config))
    checkpoint = folder / "checkpoints" / "last.ckpt"
    print(f"\ntrained for {minutes:.1f} minutes; on one page: {folder / 'report.html'}\n")
    data = CorpusDataModule(**yaml.safe_load((folder / "config.yaml").read_text())["data"])
    measure(data, checkpoint)
    sample(data, checkpoint)
    tell_how_to_go_on(folder, checkpoint)


def precision(config: Path) -> list[str]:
    """Options for bfloat16 on a processor that multiplies it faster, as with AMX."""
    if not config.is_file() or trainer_settings(config).get("accelerator") != "cpu":
        return []
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(512, 512, dtype=dtype)
        seconds.append(min(timeit.repeat(lambda x=x: x @ x, number=3, repeat=10)))
    ratio = seconds[0] / seconds[1]
    print(f"products in bfloat16 take 1/{ratio:.1f} of the time of float32")
    return ["--trainer.precision=bf16-mixed"] if ratio > 1.5 else []


def trainer_settings(config: Path) -> dict:
    """What is set for the Trainer, or else its default."""
    return TRAINER_DEFAULTS | yaml.safe_load(config.read_text()).get("trainer", {})


def runs_of(config: Path) -> Path:
    """Where a run's folder is put."""
    return Path(trainer_settings(config)["default_root_dir"])


def newest(runs: Path) -> Path:
    """The folder of the last run."""
    return max(runs.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))


def measure(data: CorpusDataModule, checkpoint: Path) -> None:
    """Bits per byte of the test text, with the trained memory, with twice that, and with none."""
    model, _ = load_run(checkpoint)
    ids, how = data.store.ids("test"), data.config
    shape = {"batch_size": how.eval_batch_size, "tgt_len": how.eval_tgt_len}
    began = time.perf_counter()
    stream_nats(model, ids[:N_TRIED], **shape, mem_len=2 * model.config.mem_len)
    some = ids[: int(N_TRIED * SECONDS / (time.perf_counter() - began))]
    size = data.bytes_per_token("test")
    print(f"held-out test text, {len(some):,} of {len(ids):,} tokens, {size:.2f} bytes each:")
    for mem_len in (2 * model.config.mem_len, model.config.mem_len, 0):
        nats = stream_nats(model, some, **shape, mem_len=mem_len)
        bits = nats.mean(dtype=torch.float64).item() / math.log(2) / size
        print(f"  mem_len {mem_len:4d}   {bits:.3f} bits per byte", flush=True)


def sample(data: CorpusDataModule, checkpoint: Path) -> None:
    """How the model continues the test text."""
    model, vocab = load_run(checkpoint)
    prompt = torch.from_numpy(data.store.ids("test")[:PROMPT_LEN].astype("int64"))
    ids = generate(model, prompt, 200, temperature=0.9, seed=1)
    before, after = vocab.decode(prompt[-40:].tolist()), vocab.decode(ids.tolist())
    print(f"\nthe test text, and after ### how the model goes on:\n\n{before}###{after}")


def tell_how_to_go_on(folder: Path, checkpoint: Path) -> None:
    """The exact commands."""
    command = f"{sys.executable} -m txl_lightning"
    given = f"--config {folder}/config.yaml --ckpt_path {checkpoint}"
    print("\ncontinue, test with a longer memory, sample:\n")
    print(f"  {command} fit {given} --plan.minutes 10")
    print(f"  {command} test {given} --model.eval_mem_len 512")
    print(f"  {command} generate --ckpt_path {checkpoint} --prompt 'import os'")


if __name__ == "__main__":
    main()
