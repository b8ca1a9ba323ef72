"""What do five minutes on two cores learn, and what does memory add?

    python experiments/quickstart/run.py [--config FILE]

Trains configs/quickstart.yaml (or another run), then scores the held-out test text with the memory
and without, prints a sample, and says how to go on.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import torch
import yaml

from txl_lightning import CorpusDataModule, generate, stream_nats
from txl_lightning.__main__ import run
from txl_lightning.checkpoints import load_run
from txl_lightning.training.cli import TRAINER_DEFAULTS

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
PROMPT = "def "


def main() -> None:
    """Train, measure, sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=CONFIG, help="the run")
    config = parser.parse_args().config
    began = time.perf_counter()
    try:
        run(["fit", "--config", str(config)])
    except ValueError as error:
        parser.error(str(error))
    minutes = (time.perf_counter() - began) / 60
    folder = newest(runs_of(config))
    checkpoint = folder / "checkpoints" / "last.ckpt"
    print(f"\ntrained for {minutes:.1f} minutes; on one page: {folder / 'report.html'}\n")
    measure(folder, checkpoint)
    sample(checkpoint)
    tell_how_to_go_on(folder, checkpoint)


def runs_of(config: Path) -> Path:
    """Where a run's folder is put."""
    given = yaml.safe_load(config.read_text()).get("trainer", {})
    return Path((TRAINER_DEFAULTS | given)["default_root_dir"])


def newest(runs: Path) -> Path:
    """The folder of the last run."""
    return max(runs.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))


def measure(folder: Path, checkpoint: Path) -> None:
    """Bits per byte of the test text, with the trained memory, with twice that, and with none."""
    model, _ = load_run(checkpoint)
    data = CorpusDataModule(**yaml.safe_load((folder / "config.yaml").read_text())["data"])
    ids, how = data.store.ids("test"), data.config
    shape = {"batch_size": how.eval_batch_size, "tgt_len": how.eval_tgt_len}
    print(f"held-out test text, {len(ids):,} {data.vocab.unit}s:")
    for mem_len in (2 * model.config.mem_len, model.config.mem_len, 0):
        nats = stream_nats(model, ids, **shape, mem_len=mem_len)
        bits = nats.mean(dtype=torch.float64).item() / math.log(2)
        print(f"  mem_len {mem_len:4d}   {bits:.3f} bits per {data.vocab.unit}", flush=True)


def sample(checkpoint: Path) -> None:
    """Text that the model writes."""
    model, vocab = load_run(checkpoint)
    prompt = torch.from_numpy(vocab.encode_text(PROMPT).astype("int64"))
    ids = generate(model, prompt, 600, temperature=0.7, seed=1)
    print(f"\na sample:\n\n{PROMPT}{vocab.decode(ids.tolist())}")


def tell_how_to_go_on(folder: Path, checkpoint: Path) -> None:
    """The exact commands."""
    command = f"{sys.executable} -m txl_lightning"
    given = f"--config {folder}/config.yaml --ckpt_path {checkpoint}"
    print("\ncontinue, test with a longer memory, sample:\n")
    print(f"  {command} fit {given} --trainer.max_steps 10000")
    print(f"  {command} test {given} --model.eval_mem_len 512")
    print(f"  {command} generate --ckpt_path {checkpoint} --prompt 'class '")


if __name__ == "__main__":
    main()
