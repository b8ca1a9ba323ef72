"""The command line with an accident in it: python driver.py VERB [options].

LOSSES   a file: every loss of this process as a line "rank batch step hex"
FAULT    what happens, where and to whom: "kill:7:1" is SIGKILL after step 7 on rank 1, "TERM:3" is
         SIGTERM after step 3 on every rank, "INT:val" is SIGINT in the second batch of the first
         validation, "raise:4" an exception in the batch after step 4, "nan:4" a loss that is no
         number there, "USR1:3" asks for a checkpoint
"""

import os
import signal
import sys
from pathlib import Path

from lightning.pytorch import Callback

from txl_lightning import __main__ as door
from txl_lightning.training import cli


class Accident(Callback):
    """Record losses, and do what FAULT says."""

    def __init__(self) -> None:
        what, self.where, self.whom = [*os.environ.get("FAULT", "").split(":"), "", ""][:3]
        self.what = what
        self.signal = getattr(signal, f"SIG{what.upper()}", None)
        self.sent = False

    def strike(self, trainer) -> None:
        if self.signal and not self.sent and self.whom in ("", str(trainer.global_rank)):
            self.sent = True
            os.kill(os.getpid(), self.signal)

    def on_before_backward(self, trainer, pl_module, loss):
        if self.what == "nan" and str(trainer.global_step) == self.where and not self.sent:
            self.sent = True
            loss.data.fill_(float("nan"))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.what == "raise" and str(trainer.global_step) == self.where:
            raise RuntimeError("an accident")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if path := os.environ.get("LOSSES"):
            loss = outputs["loss"].item().hex()
            with Path(path).open("a") as file:
                file.write(f"{trainer.global_rank} {batch.index} {trainer.global_step} {loss}\n")
        if str(trainer.global_step) == self.where:
            self.strike(trainer)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.where == "val" and batch_idx == 1:
            self.strike(trainer)


original = cli.default_callbacks
cli.default_callbacks = lambda verb, config: [*original(verb, config), Accident()]

if __name__ == "__main__":
    sys.argv[0] = __file__
    door.main()
