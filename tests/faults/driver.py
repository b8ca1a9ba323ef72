"""The command line with an accident in it: python driver.py VERB [options].

LOSSES   a file: of every batch of this process a line of JSON: rank, batch, step, loss (in hex, so
         that no bit is lost) and the tokens of its rows
PAUSE    seconds that each step takes longer
FAULT    what happens, where and to whom, several with commas between: "KILL:7:1" is SIGKILL after
         step 7 on rank 1, "TERM:3" SIGTERM after step 3 on every rank, "INT:val" SIGINT in the
         second batch of a validation that follows the first step, "HUP:test" SIGHUP in a test,
         "KILL:mid7" SIGKILL in the step after step 7, when its gradient is there; "raise:4" is an
         exception in the batch after step 4, "nan:4" a loss that is no number there, "fill:4" fills
         the disk on which FILL is to be a file
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from lightning.pytorch import Callback

from txl_lightning import __main__ as door
from txl_lightning.training import cli


class Record(Callback):
    """Write down each batch; be slow."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        if path := os.environ.get("LOSSES"):
            line = {"rank": trainer.global_rank, "batch": batch.index, "step": trainer.global_step}
            line |= {"loss": outputs["loss"].item().hex(), "tokens": batch.tokens_BL.tolist()}
            with Path(path).open("a") as file:
                file.write(json.dumps(line) + "\n")


class Accident(Callback):
    """Let a fault happen, once."""

    def __init__(self, fault: str) -> None:
        self.what, self.where, self.whom = [*fault.split(":"), ""][:3]
        self.done = False

    def is_due(self, trainer, where: int | str, *faults: str) -> bool:
        named = faults or [name.name[3:] for name in signal.Signals]
        here = self.what in named and str(where) == self.where and not self.done
        is_due = here and self.whom in ("", str(trainer.global_rank))
        self.done |= is_due
        return is_due

    def send_signal(self, trainer, where: int | str) -> None:
        if self.is_due(trainer, where):
            os.kill(os.getpid(), getattr(signal, f"SIG{self.what}"))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.is_due(trainer, trainer.global_step, "raise"):
            raise RuntimeError("an accident")
        if self.is_due(trainer, trainer.global_step, "fill"):
            fill(Path(os.environ["FILL"]))

    def on_before_backward(self, trainer, pl_module, loss):
        if self.is_due(trainer, trainer.global_step, "nan"):
            loss.data.fill_(float("nan"))

    def on_after_backward(self, trainer, pl_module):
        self.send_signal(trainer, f"mid{trainer.global_step}")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.send_signal(trainer, trainer.global_step)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step and batch_idx == 1:
            self.send_signal(trainer, "val")

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.send_signal(trainer, "test")


def fill(path: Path) -> None:
    """Use up what is left of a disk, to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def main() -> None:
    """Run `python -m txl_lightning` with our callbacks."""
    original, faults = cli.default_callbacks, filter(None, os.environ.get("FAULT", "").split(","))
    ours = [Record(), *map(Accident, faults)]
    cli.default_callbacks = lambda *args: [*original(*args), *ours]
    sys.argv[0] = __file__
    door.main()


def forked(arguments: list[str], settings: dict[str, str], folder: Path, output: Path) -> None:
    """The same in a process that a server forked, which saves the seconds that imports take."""
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
