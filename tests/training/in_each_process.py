"""What torchrun starts for test_devices.py: command lines, one after the other.

A process takes seconds to start, a run does not. Of each run a process keeps what it remembers and
how many numbers it holds, or what the run was refused with.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from txl_lightning.__main__ import silence_warnings
from txl_lightning.training.cli import TxlCLI

LIMIT = 150
"""Seconds after which a process ends that waits for another one."""


def main(folder: Path) -> None:
    signal.alarm(LIMIT)
    silence_warnings()
    for name, arguments in json.loads((folder / "runs.json").read_text()).items():
        try:
            kept = of(TxlCLI(arguments))
        except ValueError as error:
            kept = {"refused": str(error)}
        torch.save(kept, folder / f"{name}.rank{os.environ['RANK']}.pt")


def of(cli: TxlCLI) -> dict:
    """What this process has after a run and an evaluation, when another verb would begin."""
    h_NBMD = cli.model.memory_bank.committed["train", 0].h_NBMD
    tokens_BL = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        cli.model.net.loss(tokens_BL, tokens_BL)
    cli.model.configure_model()
    (optimizer,) = cli.trainer.optimizers
    tensors = list(cli.model.parameters())
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    held = sum(t.to_local().numel() if hasattr(t, "to_local") else t.numel() for t in tensors)
    return {"h_NBMD": h_NBMD, "held": held}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
