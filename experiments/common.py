"""Helpers of every run.py: command line, training, evaluation, and one record per measurement.

A run.py continues where it was stopped: a measurement with a record is skipped, and an unfinished
fit resumes. figures.py makes tables and figures of results.json alone (results.py).

    python -m experiments.recurrence.run [--seeds 1 2 3] [--only KIND ...] [--fast] [--out FILE]

--again trains and measures once more what has a record, beside it: on another day or machine.
"""

import argparse
import csv
import hashlib
import io
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.results import AGAIN, load_records
from txl_lightning import TransformerXL, stream_nats
from txl_lightning.__main__ import describe_error, run
from txl_lightning.checkpoints import load_checkpoint
from txl_lightning.data.store import Store
from txl_lightning.errors import DataError, flatten_settings, print_notice
from txl_lightning.files import write_json
from txl_lightning.machine import describe_environment

REPOSITORY = Path(__file__).parents[1]
PLAIN = "experiments/plain.yaml"
"""Defaults of the package, so that fit gives no text of one's own its recipe."""
CHECKPOINT = "checkpoints/last.ckpt"
PATH_OPTIONS = {"--out", "--runs"}
DECISIVE = ("fast", "precision", "accelerator")
"""Options of every run.py that decide a result."""
SHARED: dict[str, dict[str, Any]] = {
    "seeds": {"type": int, "nargs": "+"},
    "fast": {"action": "store_true", "help": "tiny sizes and one seed, as a test"},
    "out": {"type": Path, "help": "results.json; existing records are kept"},
    "runs": {"type": Path, "help": "folder of the training runs"},
    "precision": {
        "default": "32-true",
        "choices": ("32-true", "bf16-mixed"),
        "help": "of training; default: %(default)s",
    },
    "accelerator": {"default": "cpu", "choices": ("cpu", "gpu"), "help": "of training"},
    "again": {
        "action": "store_true",
        "help": "train and measure once more, in records beside those that exist",
    },
}
"""Options of every run.py: the arguments of add_argument by name."""
QUIET = {"trainer.enable_progress_bar": False, "report.html": False, "report.sample_len": 0}

Options = Mapping[str, Any]
"""Settings of a command by key, as {"config": "configs/smoke.yaml", "data.tgt_len": 8}."""
flatten = flatten_settings
"""Return settings that are grouped by section as options: {"data": {"tgt_len": 8}}."""

# As in configs/quickstart.yaml.
MUON = {
    "model.net.init_std": 0.05,
    "model.optim.name": "muon",
    "model.optim.lr": 6e-3,
    "model.optim.muon_lr": 12e-3,
    "model.optim.betas": [0.9, 0.95],
    "model.optim.weight_decay": 0.25,
    "model.optim.warmup_steps": 100,
}
QUICKSTART = {"config": "configs/quickstart.yaml", "plan.minutes": None}
"""The quick start, with a number of steps in place of its minutes."""
FAST = {
    "data.vocab": "bytes",
    "trainer.max_steps": 4,
    "trainer.val_check_interval": 4,
    "trainer.limit_val_batches": 2,
}
"""Options of --fast."""


def plan_steps(steps: int, validations: int = 1) -> dict[str, int]:
    interval = max(steps // validations, 1)
    return {"trainer.max_steps": steps, "trainer.val_check_interval": interval}


def parse_args(
    script: str,
    doc: str,
    seeds: Sequence[int] = (1, 2, 3),
    vary: str = "weights and data",
    kinds: Iterable[str] = (),
    **more: dict[str, Any],
) -> argparse.Namespace:
    """Return the arguments of a run.py, and `origin`: its command, commit and machine.

    `vary` names what seeds vary, `kinds` the measurements of each seed, which --only selects.
    `more` has further options as SHARED has them, or other arguments of those: a plan with a
    precision of its own has it as the default.
    """
    folder = Path(script).parent
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    own = {"seeds": {"help": f"default: {seeds}"}} | more
    if kinds := list(kinds):
        own["only"] = {"nargs": "+", "choices": kinds, "default": kinds, "help": "kinds to train"}
    for name, keywords in (SHARED | own).items():
        parser.add_argument(f"--{name}", **SHARED.get(name, {}) | keywords)
    args = parser.parse_args()
    root = Path("runs", "fast" if args.fast else "experiments")
    args.runs = args.runs or root / folder.name
    args.out = args.out or (args.runs if args.fast else folder) / "results.json"
    args.seeds = args.seeds or list(seeds)[: 1 if args.fast else None]
    args.device = torch.device("cuda" if args.accelerator == "gpu" else "cpu")
    args.origin = describe_origin(folder.name, args.device) | {"seeds_vary": vary}
    args.settings = {name: getattr(args, name) for name in DECISIVE}
    return args


def describe_origin(name: str, device: torch.device) -> dict[str, Any]:
    """Return command, commit and machine; call it before results.json makes the commit dirty."""
    # The folders of the output do not change results.
    options = [w for n, w in enumerate(sys.argv) if n and not {w, sys.argv[n - 1]} & PATH_OPTIONS]
    command = ["python", "-m", f"experiments.{name}.run", *options]
    return {"command": shlex.join(command)} | describe_environment(device)


def measure_once(
    args: argparse.Namespace, name: str, measure: Callable[..., dict[str, Any]], *values: Any
) -> None:
    """Add the result of `measure(args, *values)` to results.json, unless `name` is there.

    `seconds` in the record is the wall time of the call, without that of earlier, stopped ones.
    A record that was measured with another precision or accelerator ends the command.
    """
    began = time.monotonic()
    try:
        if name in load_records(args.out):
            find_record(args, name)
            print(f"{name}: measured already, in {args.out}; --again measures it once more")
            return
        result = measure(args, *values)
    except DataError as error:
        print(f"error: {describe_error(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    more = {"seconds": time.monotonic() - began, "ran_with": args.settings}
    record = {name: result | more | {"origin": args.origin}}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json({"fast": args.fast, "records": load_records(args.out) | record}, args.out)


def find_record(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return a record that a measurement needs; DataError if it is missing or had other settings.

    Older records do not name their settings.
    """
    record = load_records(args.out).get(name)
    if record is None:
        raise DataError(f"{args.out}: {name} is missing; expected its record: measure it before")
    found = record.get("ran_with", args.settings)
    for option, value in args.settings.items():
        if found[option] != value:
            text = f"{args.out}: {name} was measured with --{option} {found[option]}"
            raise DataError(f"{text}; expected {value}; give another --out")
    return record


def set_precision(args: argparse.Namespace, precision: str) -> argparse.Namespace:
    """Return the arguments of a part whose plan has a precision of its own."""
    settings = args.settings | {"precision": precision}
    return argparse.Namespace(**vars(args) | {"precision": precision, "settings": settings})


def measure_kinds(args: argparse.Namespace, measure: Callable[..., dict[str, Any]]) -> None:
    for seed in args.seeds:
        for kind in args.only:
            measure_seed(args, f"{kind} {seed}", measure, kind, seed)


def measure_seed(
    args: argparse.Namespace, name: str, measure: Callable[..., dict[str, Any]], *values: Any
) -> None:
    """Add the result of a seed to results.json, with --again in a record of its own."""

    def repeat(*values: Any) -> dict[str, Any]:
        # A record of another kind belongs to no contrast.
        found = measure(*values)
        return found | {key: f"{found[key]}{AGAIN}" for key in ("kind", "reading") if key in found}

    if args.again:
        measure_once(args, f"{name}{AGAIN}", repeat, *values)
    else:
        measure_once(args, name, measure, *values)


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its folder, and what its last checkpoint and its text have."""

    folder: Path
    options: Options
    net: TransformerXL
    store: Store

    @property
    def text(self) -> str:
        """The sha256 of train, val and test together."""
        return self.store.manifest["text"]

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.net.parameters())

    def describe(self, curve: str | None = None) -> dict[str, Any]:
        """Return the fields that records of training share; `curve` is a column of metrics.csv."""
        fields = {"options": self.options, "text": self.text, "parameters": self.parameters}
        fields |= {"training_seconds": self.count_seconds()}
        return fields | ({"curve": self.load_curve(curve)} if curve else {})

    def count_seconds(self) -> float | None:
        """Return the last logged time of training, with its validations; None without one."""
        return max(self.load_curve("train/seconds")["train/seconds"], default=None)

    def load_curve(self, column: str) -> dict[str, list[float]]:
        with (self.folder / "metrics.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row.get(column)]
        steps = [int(row["step"]) for row in rows]
        return {"steps": steps, column: [float(row[column]) for row in rows]}

    def evaluate(self, options: Options) -> dict[str, Any]:
        """Return the JSON record that the command `evaluate` prints."""
        with redirect_stdout(io.StringIO()) as line:
            run(["evaluate", str(self.folder / CHECKPOINT), *format_options(options)])
        return json.loads(line.getvalue())


def score(args: argparse.Namespace, run: TrainedRun, **how: Any) -> dict[str, Any]:
    """Return the record of an evaluation; if fast, of the first tokens."""
    return run.evaluate(how | ({"max_tokens": 2000} if args.fast else {}))


def read_rows(net: TransformerXL, ids_BT: np.ndarray, before: int, **how: Any) -> Tensor:
    """Return the nats of the tokens of each row after the first `before`, in float64."""
    nats_BT = stream_nats(net, ids_BT.ravel(), batch_size=len(ids_BT), **how)
    return nats_BT[:, before - 1 :].double()


def train(args: argparse.Namespace, name: str, seed: int, options: Options) -> TrainedRun:
    """Train with a seed in a folder of the runs, or resume there; with --again in another one."""
    seeded = {"seed_everything": seed, "trainer.precision": args.precision}
    seeded |= {"trainer.accelerator": args.accelerator}
    name = f"{name} again" if args.again else name
    return fit(find_folder(args.runs, name, options | seeded), options | seeded)


def find_folder(runs: Path, name: str, options: Options) -> Path:
    """Return the folder of a run: its name, and a digest of all settings that decide it."""
    config = (REPOSITORY / options.get("config", PLAIN)).read_text()
    text = json.dumps([sorted(options.items()), config], default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return runs / f"{name.replace(' ', '_')}_{digest}"


def fit(folder: Path, options: Options) -> TrainedRun:
    """Train in a folder, or resume there."""
    where = {"trainer.default_root_dir": str(folder), "resume": "auto"}
    where["config"] = str(REPOSITORY / options.get("config", PLAIN))
    # No bar, as a log may have the lines of many runs.
    print_notice(f"training in {folder}: the metrics.csv of its version_N shows the steps")
    try:
        run(["fit", *format_options(QUIET | options | where)])
    except SystemExit as stop:
        # 0: the run is complete; a signal has another code.
        if stop.code:
            raise
    newest = max(folder.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))
    return load_trained(newest, options)


def load_trained(folder: Path, options: Options) -> TrainedRun:
    loaded = load_checkpoint(folder / CHECKPOINT)
    return TrainedRun(folder, options, loaded.build_network(), loaded.open_text()[1])


def format_options(options: Options) -> list[str]:
    # Options after --config override it.
    names = sorted(options, key=lambda name: name != "config")
    texts = [v if isinstance(v := options[name], str) else json.dumps(v) for name in names]
    return [f"--{name}={text}" for name, text in zip(names, texts, strict=True)]


def choose_rate(
    net: str, train_with: Callable[[float], TrainedRun], start: float, fast: bool = False
) -> dict[str, Any]:
    """Return a record: the nats of validation text by learning rate, and the best rate.

    `train_with` trains as long as the runs that count: a rate that is best for a shorter training
    may be wrong for them. The record has the whole curve of each training.
    """
    runs: dict[float, TrainedRun] = {}

    def nats_of(rate: float) -> float:
        runs[rate] = train_with(rate)
        # The last of a curve: the schedule has ended, as in the runs that count.
        return runs[rate].load_curve("val/nats")["val/nats"][-1]

    best, found = search_rate(nats_of, start, fast)
    nats = {f"{rate:g}": found[rate] for rate in found}
    kept = {f"{rate:g}": run.load_curve("val/nats") for rate, run in runs.items()}
    fields = {"kind": "rate", "net": net, "text": runs[best].text}
    return fields | {"val": nats, "curves": kept, "rate": best}


def search_rate(
    nats_of: Callable[[float], float], start: float, fast: bool = False
) -> tuple[float, dict[float, float]]:
    """Return the rate of the fewest nats, and the nats by rate.

    From `start` and twice as much, the better one is doubled, or halved, until the nats rise: the
    best rate is inside the grid. If fast, no other rate is tried.
    """
    nats = {rate: nats_of(rate) for rate in (start, 2 * start)}
    best = min(nats, key=nats.__getitem__)
    factor = 0.5 if best == start else 2
    while not fast and (rate := factor * best) not in nats:
        nats[rate] = nats_of(rate)
        best = min(best, rate, key=nats.__getitem__)
    return best, nats
