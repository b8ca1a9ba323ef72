"""The command line with an accident in it: python driver.py COMMAND [options].

LOSSES   a file: of every batch of this process a line of JSON: rank, batch, step, loss (in hex, so
         that no bit is lost) and the tokens of its rows
PAUSE    seconds that each step takes longer
FAULT    what happens, where and to whom, several with commas between. What: a signal, as KILL, an
         exception (raise), a loss that is no number (nan), or the disk of the file FILL is full
         (fill). Where: after a step (7), before the next one (before7), in it, when there is a loss
         (loss7) or a gradient (mid7), in the second batch of a validation after the first step
         (val) or in a test. To whom: a rank, or all. "KILL:7:1" is SIGKILL after step 7 on rank 1.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from lightning.pytorch import Callback

from txl_lightning import __main__ as door
from txl_lightning.training import cli


class Record(Callback):
    """Write down each batch; be slow."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        line = {"rank": trainer.global_rank, "batch": batch.index, "step": trainer.global_step}
        line |= {"loss": outputs["loss"].item().hex(), "tokens": batch.tokens_BL.tolist()}
        with Path(os.environ["LOSSES"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


class Accident(Callback):
    """Let a fault happen, once."""

    def __init__(self, fault: str) -> None:
        self.what, self.where, self.whom = [*fault.split(":"), ""][:3]

    def happen(self, trainer, where: str, loss=None) -> None:
        if where != self.where or self.whom not in ("", str(trainer.global_rank)):
            return
        self.where = "happened"
        match self.what:
            case "raise":
                raise RuntimeError("an accident")
            case "nan":
                loss.data.fill_(float("nan"))
            case "fill":
                with suppress(OSError), Path(os.environ["FILL"]).open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
            case name:
                os.kill(os.getpid(), getattr(signal, f"SIG{name}"))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.happen(trainer, f"before{trainer.global_step}")

    def on_before_backward(self, trainer, pl_module, loss):
        self.happen(trainer, f"loss{trainer.global_step}", loss)

    def on_after_backward(self, trainer, pl_module):
        self.happen(trainer, f"mid{trainer.global_step}")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.happen(trainer, str(trainer.global_step))

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step and batch_idx == 1:
            self.happen(trainer, "val")

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.happen(trainer, "test")


def main() -> None:
    """Run `python -m txl_lightning` with our callbacks."""
    original, faults = cli.default_callbacks, filter(None, os.environ["FAULT"].split(","))
    ours = [Record(), *map(Accident, faults)]
    cli.default_callbacks = lambda *args: [*original(*args), *ours]
    sys.argv[0] = __file__
    door.main()


def forked(arguments: list[str], settings: dict[str, str], folder: Path, output: Path) -> None:
    """Run it in a process that a server forked, which saves the seconds that imports take."""
    import torch
    from lightning.pytorch.utilities import rank_zero_only

    os.chdir(folder)
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(settings)
    # What is decided when Lightning and torch are imported.
    rank_zero_only.rank = int(os.environ.get("RANK", 0))
    torch.set_num_threads(1)
    sys.argv[1:] = arguments
    main()


if __name__ == "__main__":
    main()
