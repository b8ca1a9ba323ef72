"""A resumed run gets back every value of its state, also from a checkpoint of an earlier format."""

import json
import random
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig
from txl_lightning.runs.folder import KEY
from txl_lightning.training.callbacks.checkpointing import BestCheckpoint, LastCheckpoint
from txl_lightning.training.callbacks.time_budget import TimeBudget
from txl_lightning.training.callbacks.validation_probe import ValidationProbe
from txl_lightning.training.callbacks.weight_averaging import WeightAverage
from txl_lightning.training.run_state import RunState, find_callbacks, read_state

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*skipped .1 of 2",
    # Another machine wrote the golden checkpoint.
    "ignore:the order of the text is exact",
)
FORMAT_2 = Path(__file__).parents[1] / "golden" / "checkpoint_of_format_2.ckpt"
# What differs from one process to the next, and what only a warning compares.
OF_PROCESS = {"seconds", "environment"}
# Its tests are in callbacks/test_wandb.py.
OF_WANDB = {"wandb_id"}
NAMES = [each.name for each in fields(RunState) if each.name not in OF_WANDB]
STATES = ("state_dict", "trained", "optimizer_states", "lr_schedulers", "global_step")


class Events(Callback):
    """A clock of half a second for each segment, one update that is skipped, and a saved middle."""

    def __init__(self, middle: Path) -> None:
        self.middle = middle
        self.now = 0.0
        self.n_validation = 0

    def on_train_batch_start(self, *_):
        self.now += 0.5

    def on_before_backward(self, trainer, module, loss):
        if trainer.global_step == 3 and not module.guard.n_skipped:
            loss.data.fill_(float("nan"))

    def on_validation_start(self, trainer, module):
        self.n_validation += 1
        if self.n_validation == 3 and not self.middle.exists():
            # Saved after the step before this validation.
            shutil.copy(Path(trainer.default_root_dir, "checkpoints", "last.ckpt"), self.middle)


class Stop(Checkpoint):
    """End a run when its state is restored, before a validation that is due."""

    def on_train_start(self, trainer, module):
        path = Path(trainer.default_root_dir, "stop.ckpt")
        trainer.save_checkpoint(path)
        self.checkpoint = torch.load(path, weights_only=True)
        raise SystemExit


def train(folder: Path, start: Path | None = None, *callbacks: Callback) -> Trainer:
    """Train with everything that has a state; FORMAT_2 is the middle of such a run."""
    folder.mkdir(exist_ok=True)
    seed_everything(4 if start else 3, verbose=False)
    (folder / "text.txt").write_text("".join(chr(97 + n * n % 11) for n in range(900)))
    about = {"vocab": "characters", "split": (0.8, 0.1, 0.1), "data_dir": str(folder / "data")}
    sizes = {"tgt_len": 4, "batch_size": 2, "eval_batch_size": 2}
    data = CorpusDataModule(path=str(folder / "text.txt"), **about, **sizes)
    net = TransformerXLConfig(data.n_token, n_layer=1, n_head=1, d_model=4, mem_len=6, dropout=0.2)
    model = LanguageModel(net, OptimConfig(lr=3e-3, max_skipped_updates=2))
    events = Events(folder / "middle.ckpt")
    silent = ("logger", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler")
    steps = {"max_steps": 40, "max_epochs": -1, "val_check_interval": 6, "limit_val_batches": 7}
    trainer = Trainer(
        accelerator="cpu", devices=1, num_sanity_val_steps=0, check_val_every_n_epoch=None,
        log_every_n_steps=1000, default_root_dir=str(folder / "run"),
        **dict.fromkeys(silent, False), **steps,
        callbacks=[
            WeightAverage(None), TimeBudget(1, lambda: events.now), ValidationProbe(5),
            EarlyStopping("val/nats", patience=9), events, *callbacks, BestCheckpoint(),
            LastCheckpoint(1),
        ],
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=start)
    return trainer


def dump(value: object) -> str:
    """Return a value as text, without losing a bit."""
    return json.dumps(
        value, sort_keys=True, default=lambda tensor: [str(tensor.dtype), tensor.tolist()]
    )


def list_results(folder: Path) -> dict[str, str]:
    """Return all that a run is at its end, besides what differs from one process to the next."""
    saved = torch.load(folder / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    state = {name: saved[KEY][name] for name in NAMES if name not in OF_PROCESS}
    return {name: dump(value) for name, value in (state | {n: saved[n] for n in STATES}).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


def write_format_2(saved: dict) -> dict:
    """Return a checkpoint as it was before its state was in one place."""
    state = saved[KEY]
    parts = {
        "NonFiniteGuard": {"n_skipped": state.pop("n_skipped")},
        "LastCheckpoint": {"validation_due": state.pop("validation_due")},
        "TimeBudget": state.pop("plan_state"),
        "WeightAverage": {"count": state.pop("n_averaged")},
    }
    measured = ("samples", "prompt_len", "nats_by_position", "attention")
    parts["ValidationProbe"] = {name: state.pop(name) for name in measured}
    saved["callbacks"] |= parts
    saved["loops"]["fit_loop"]["state_dict"]["combined_loader"] = [state.pop("position")]
    return saved | {"seconds": state.pop("seconds"), KEY: state | {"format": 2}}


@pytest.fixture(scope="module", params=[2, 3], ids=lambda number: f"format {number}")
def resumed(request, whole, tmp_path_factory):
    """A checkpoint, and the state and the Trainer of a run that was resumed from it."""
    path = FORMAT_2 if request.param == 2 else whole / "middle.ckpt"
    stop = Stop()
    with pytest.raises(SystemExit):
        train(tmp_path_factory.mktemp("resumed"), path, stop)
    return torch.load(path, weights_only=True), stop


@pytest.mark.parametrize("name", sorted({*NAMES} - OF_PROCESS))
def test_every_value_of_the_state_is_restored_to_the_last_bit(resumed, name):
    checkpoint, stop = resumed
    saved = read_state(checkpoint)
    now = read_state(stop.checkpoint)
    # Before it was a setting, a step read one segment.
    saved.position["read_as"].setdefault("gradient_segments", 1)
    # Otherwise it would be as in a new run.
    assert name == "world_size" or getattr(saved, name) != getattr(RunState(), name)
    assert dump(getattr(now, name)) == dump(getattr(saved, name))


def test_weights_average_optimizer_schedule_steps_and_seconds_are_restored(resumed):
    checkpoint, stop = resumed
    for name in STATES:
        assert dump(stop.checkpoint[name]) == dump(checkpoint[name]), name
    seconds = read_state(checkpoint).seconds
    assert seconds < read_state(stop.checkpoint).seconds < seconds + 600
    [patience] = (value for name, value in stop.checkpoint["callbacks"].items() if "Early" in name)
    assert patience["best_score"] < torch.inf


@pytest.mark.parametrize("number", [2, 3])
def test_resume_from_each_format_ends_as_an_uninterrupted_run(whole, tmp_path, number):
    saved = torch.load(whole / "middle.ckpt", weights_only=True)
    torch.save(write_format_2(saved) if number == 2 else saved, tmp_path / "start.ckpt")
    train(tmp_path, tmp_path / "start.ckpt")
    assert list_results(tmp_path) == list_results(whole)


def lose(what: str, checkpoint: dict) -> None:
    """Set a value of a checkpoint back to that of a new run."""
    first = checkpoint[KEY]["ranks"][0]
    match what:
        case "torch":
            first["rng"]["torch"] = torch.Generator().manual_seed(9).get_state()
        case "python":
            first["rng"]["python"] = random.Random(9).getstate()
        case "numpy":
            kind, keys, *rest = first["rng"]["numpy"]
            first["rng"]["numpy"] = (kind, keys[::-1], *rest)
        case "mean":
            first["mean"] = [0.0, 0.0]
        case "optimizer":
            for moments in checkpoint["optimizer_states"][0]["state"].values():
                moments["exp_avg"].zero_()
        case "schedule":
            checkpoint["lr_schedulers"][0]["last_epoch"] = 0
        case "average":
            checkpoint["state_dict"] = checkpoint["trained"]
        case "weights":
            checkpoint["trained"] = checkpoint["state_dict"]
        case name:
            del checkpoint[KEY][name]


# What the next validation measures again is lost only until then.
MEASURED = {"prompt_len", "nats_by_position", "attention"}
LOST = {*NAMES} - OF_PROCESS - MEASURED - {"exact", "world_size", "ranks"}
OTHERS = ("torch", "python", "numpy", "mean", "optimizer", "schedule", "average", "weights")


@pytest.mark.parametrize("what", [*sorted(LOST), *OTHERS])
@pytest.mark.filterwarnings("ignore:the checkpoint holds no memory")
def test_a_run_that_lost_a_value_of_its_state_ends_otherwise(whole, tmp_path, what):
    saved = torch.load(whole / "middle.ckpt", weights_only=True)
    lose(what, saved)
    torch.save(saved, tmp_path / "start.ckpt")
    train(tmp_path, tmp_path / "start.ckpt")
    assert list_results(tmp_path) != list_results(whole)


def test_a_callback_of_a_derived_class_keeps_its_value_and_one_of_the_same_name_is_another():
    own = type("Own", (ValidationProbe,), {})()
    other = type("ValidationProbe", (Callback,), {})()
    trainer = Trainer(accelerator="cpu", logger=False, callbacks=[own, other])
    assert find_callbacks(trainer, "ValidationProbe") == [own]
