"""What do five minutes on two cores learn, and what does memory add?

    python experiments/quickstart/run.py [fit options]

Trains configs/quickstart.yaml, then scores the held-out test files with the memory and without,
prints a sample, and says how to go on.
"""

import math
import sys
import time
from pathlib import Path

import torch

from txl_lightning import CorpusDataModule, generate, stream_nats
from txl_lightning.__main__ import quieten, run
from txl_lightning.checkpoints import load_run

CONFIG = "configs/quickstart.yaml"
RUNS = Path("runs/quickstart")
PROMPT = "def "


def main() -> None:
    """Train, measure, sample."""
    quieten()
    began = time.perf_counter()
    sys.argv[1:] = ["fit", "--config", CONFIG, *sys.argv[1:]]
    run(sys.argv[1:])
    minutes = (time.perf_counter() - began) / 60
    folder = max(RUNS.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))
    checkpoint = folder / "checkpoints" / "last.ckpt"
    print(f"\ntrained for {minutes:.1f} minutes; curve: {folder / 'curve.png'}\n")
    measure(checkpoint)
    sample(checkpoint)
    tell_how_to_go_on(folder, checkpoint)


def measure(checkpoint: Path) -> None:
    """Bits per byte of the test files, with the trained memory and with none."""
    model, _ = load_run(checkpoint)
    ids = CorpusDataModule().store.ids("test")
    print(f"held-out test files, {len(ids):,} bytes:")
    for mem_len in (model.config.mem_len, 0):
        nats = stream_nats(model, ids, batch_size=16, tgt_len=64, mem_len=mem_len)
        bits = nats.mean(dtype=torch.float64).item() / math.log(2)
        print(f"  mem_len {mem_len:4d}   {bits:.3f} bits per byte", flush=True)


def sample(checkpoint: Path) -> None:
    """Code that the model writes."""
    model, vocab = load_run(checkpoint)
    prompt = torch.from_numpy(vocab.encode_text(PROMPT).astype("int64"))
    ids = generate(model, prompt, 600, temperature=0.7, seed=1)
    print(f"\na sample:\n\n{PROMPT}{vocab.decode(ids.tolist())}")


def tell_how_to_go_on(folder: Path, checkpoint: Path) -> None:
    """The exact commands."""
    command = f"{sys.executable} -m txl_lightning"
    given = f"--config {folder}/config.yaml --ckpt_path {checkpoint}"
    print("\ncontinue, test with a longer memory, sample:\n")
    print(f"  {command} fit {given} --trainer.max_steps 20000")
    print(f"  {command} test {given} --model.eval_mem_len 512")
    print(f"  {command} generate --ckpt_path {checkpoint} --prompt 'class '")


if __name__ == "__main__":
    main()
