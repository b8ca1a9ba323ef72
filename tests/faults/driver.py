"""Run the command line with faults: python driver.py COMMAND [options].

LOSSES   a file; for every batch of this process a line of JSON: rank, batch, step, loss (in hex, so
         that no bit is lost) and the tokens of its rows
PAUSE    additional seconds for each step
FAULT    WHAT:WHERE:RANK, or several of these, separated by commas. "KILL:7:1" is SIGKILL after step
         7 on rank 1. Without a rank: on all
CALLS    a file; the number of calls of functions in the command
GROWTH   a file; every 50 steps a line with the process's resident kilobytes, open files and tensors
SECONDS  between two pages of a report
THREADS  number of torch threads

WHAT     what happens
KILL     a signal: this or another one
raise    an exception
nan      a nan loss
fill     the disk of the file FILL is full
remove   the folder of runs is removed
obstruct the folder of runs has a file in place of its checkpoints
protect  the folder of runs is read-only, if it is mounted
clock    Python's clock is set back

WHERE    when it happens
7        after a step
before7  before the next step
loss7    during the next step, when there is a loss
mid7     during the next step, when there is a gradient
val      in the second batch of a validation after the first step
test     in a test
0.5s     after some seconds
500c     after some calls
upload@7 at the first call of a function after a step, in any thread
"""

import ctypes
import functools
import gc
import inspect
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lightning.pytorch import Callback
from torch import Tensor

from txl_lightning import __main__ as entry
from txl_lightning.training import cli
from txl_lightning.training.callbacks import report


class Record(Callback):
    """Record each batch, and wait for PAUSE seconds."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        line = {"rank": trainer.global_rank, "batch": batch.index, "step": trainer.global_step}
        line |= {"loss": outputs["loss"].item().hex(), "tokens": batch.tokens_BL.tolist()}
        with Path(os.environ["LOSSES"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


class Growth(Callback):
    """Record memory, open files and tensors of the process."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % 50 == 0:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # Without both, freed memory counts.
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            n_file = len(os.listdir("/proc/self/fd"))
            n_tensor = sum(issubclass(type(each), Tensor) for each in gc.get_objects())
            with Path(os.environ["GROWTH"]).open("a") as file:
                print(pages * resource.getpagesize() // 1024, n_file, n_tensor, file=file)


def set_clock_back() -> None:
    """Set back Python's clock; the kernel still writes correct times of files."""
    original = time.time, time.time_ns
    time.time = lambda: original[0]() - 86_400
    time.time_ns = lambda: original[1]() - 86_400 * 10**9


def obstruct() -> None:
    for folder in Path("runs").glob("version_*/checkpoints"):
        shutil.rmtree(folder)
        folder.touch()


def fill_disk() -> None:
    with suppress(OSError), Path(os.environ["FILL"]).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


SAVING = tuple(f"/{name}.py" for name in (
    "txl_lightning/files", "checkpoints/saving", "runs/logger", "callbacks/checkpointing",
    "training/run_state", "callbacks/always", "logger_connector/logger_connector",
    "loggers/csv_logs", "trainer/trainer",
))  # fmt: skip  # ends of the files with the code that logs and saves
DAMAGE = {
    "remove": lambda: shutil.rmtree("runs"),
    "obstruct": obstruct,
    "protect": lambda: subprocess.run(["mount", "-o", "remount,ro", "runs"], check=True),
    "fill": fill_disk,
    "clock": set_clock_back,
}


class KilledCopies(Callback):
    """Kill a copy of this process at each line that logs or saves between a step and the next."""

    def __init__(self, step: int, n_line: int) -> None:
        self.step = step
        self.n_line = n_line
        self.is_copy = False

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step != self.step:
            return
        shutil.copytree("runs", "before")
        drawn = random.getstate()
        for number in itertools.count(1, self.n_line):
            child = os.fork()
            if not child:
                self.is_copy = True
                random.setstate(drawn)  # A fork draws other numbers.
                kill_at_line(number)
                return
            status = os.waitpid(child, 0)[1]
            os.rename("runs", f"copy{number:03}")
            shutil.copytree("before", "runs")
            if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
                os._exit(os.waitstatus_to_exitcode(status))

    def on_train_batch_start(self, *_):
        if self.is_copy:
            os._exit(0)


def kill_at_line(number: int) -> None:
    """Kill this process at the nth new line of the code that logs or saves."""
    lines = set()

    def trace(frame, event, _):
        if frame.f_code.co_filename.endswith(SAVING):
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

    sys.settrace(trace)


class Accident(Callback):
    """Cause a fault, once."""

    def __init__(self, fault: str) -> None:
        self.what, self.where, self.whom = [*fault.split(":"), ""][:3]
        if self.where.endswith("s"):
            number = getattr(signal, f"SIG{self.what}")
            timer = threading.Timer(float(self.where[:-1]), os.kill, (os.getpid(), number))
            timer.daemon = True
            timer.start()
        self.name, _, self.step = self.where.partition("@")
        if self.step:
            # Only threads that start later are traced.
            self.trainer = None
            self.has_step = False
            threading.settrace(self.trace)

    def trace(self, frame, *_) -> None:
        if self.has_step and frame.f_code.co_name == self.name:
            self.happen(self.trainer, self.where)

    def happen(self, trainer, where: str, loss=None) -> None:
        if where != self.where or self.whom not in ("", str(trainer.global_rank)):
            return
        self.where = "happened"
        match self.what:
            case "raise":
                raise RuntimeError("an accident")
            case "nan":
                loss.data.fill_(float("nan"))
            case name if name in DAMAGE:
                DAMAGE[name]()
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
        if self.step and int(self.step) <= trainer.global_step:
            self.trainer = trainer
            self.has_step = True
            sys.settrace(self.trace)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step and batch_idx == 1:
            self.happen(trainer, "val")

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.happen(trainer, "test")


def count_calls(run: Callable[[list[str]], None], faults: list[str], words: list[str]) -> None:
    """Send each signal at a call of a function: the same one, however busy the machine is."""
    process = os.getpid()
    n_call = 0
    names = {int(where[:-1]): name for name, where in (fault.split(":") for fault in faults)}

    def profile(frame, event, _):
        nonlocal n_call
        # Python ignores exceptions while it destroys an object or closes a generator.
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        if event == "call" and not is_generator and frame.f_code.co_name != "__del__":
            n_call += 1
            if n_call in names and os.getpid() == process:
                os.kill(process, getattr(signal, f"SIG{names[n_call]}"))

    sys.setprofile(profile)
    try:
        run(words)
    finally:
        sys.setprofile(None)
    Path(os.environ["CALLS"]).write_text(str(n_call))


def main() -> None:
    """Run `python -m txl_lightning` with our callbacks."""
    original = cli.make_callbacks
    faults = [*filter(None, os.environ["FAULT"].split(","))]
    if "CALLS" in os.environ:
        at_calls = [fault for fault in faults if fault.endswith("c")]
        entry.run = functools.partial(count_calls, entry.run, at_calls)
    ours = [Record(), *map(Accident, faults), *([Growth()] if "GROWTH" in os.environ else [])]
    if "COPIES" in os.environ:
        ours.append(KilledCopies(*map(int, os.environ["COPIES"].split())))
    if "SECONDS" in os.environ:
        report.MIN_SECONDS_BETWEEN_PAGES = float(os.environ["SECONDS"])
    cli.make_callbacks = lambda *args: [*original(*args), *ours]
    sys.argv[0] = __file__
    entry.main()


def forked(arguments: list[str], settings: dict[str, str], folder: Path, output: Path) -> None:
    """Run `main` in a process that a server forked, without the seconds for imports."""
    import torch
    from lightning.pytorch.utilities import rank_zero_only

    os.chdir(folder)
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(settings)
    # Settings that Lightning and torch read at import.
    rank_zero_only.rank = int(os.environ.get("RANK", 0))
    torch.set_num_threads(int(os.environ.get("THREADS", 1)))
    sys.argv[1:] = arguments
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
    try:
        main()
    finally:
        # Ignore signals after the end.
        for name in ("INT", "TERM", "HUP", "USR1"):
            signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)


def run_line(arguments: list[str], folder: Path, output: Path) -> None:
    """Run a command line with 4 GB of memory and an empty standard input."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (4 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.environ |= {"WANDB_MODE": "offline", "PYTHONPATH": str(Path(__file__).parents[2])}
    sys.argv[1:] = arguments
    entry.main()


if __name__ == "__main__":
    main()
