"""Parts of Lightning and W&B that cannot work are one line before a run has a folder."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from lightning.pytorch import Callback, Trainer, callbacks
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger

from txl_lightning.checkpoints import load_checkpoint
from txl_lightning.training.callback_checks import ANSWERS, check_callbacks, list_metrics
from txl_lightning.training.callbacks.time_budget import TimeBudget
from txl_lightning.training.callbacks.validation_probe import ValidationProbe
from txl_lightning.training.callbacks.weight_averaging import WeightAverage
from txl_lightning.training.cli import TxlCLI, set_up_libraries

PAGE = Path(__file__).parents[2] / "docs" / "train.md"
CALLBACK = "--trainer.callbacks+="
STOPPING = f"{CALLBACK}EarlyStopping --trainer.callbacks.monitor="
KEEPING = f"{CALLBACK}ModelCheckpoint --trainer.callbacks.monitor="
WRITING = f"{CALLBACK}ModelCheckpoint --trainer.callbacks."
FOLDER = f"{CALLBACK}ModelCheckpoint --trainer.callbacks.dirpath="


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"{STOPPING}val_loss", "trainer.callbacks.monitor: invalid val_loss; expected one of "),
        (f"{STOPPING}val/los", "trainer.callbacks.monitor: invalid val/los; expected one of val/l"),
        (f"{KEEPING}val/token_accuracy", "trainer.callbacks.monitor: invalid val/token_accuracy; "),
        (f"{FOLDER}memory://bucket/x", "trainer.callbacks.dirpath: invalid memory://bucket/x; exp"),
        # Of this network, whose memory is longer than its validations.
        (f"{STOPPING}val/memory_gain --trainer.limit_val_batches=1", "invalid val/memory_gain;"),
        (f"{KEEPING}val/memory_gain_error --model.eval_mem_len=0", "invalid val/memory_gain_err"),
        (f"{STOPPING}train/loss --trainer.val_check_interval=9", "log_every_n_steps: invalid 10; "),
        (f"{KEEPING}train/grad_norm --trainer.log_every_n_steps=0", "log_every_n_steps: invalid 0"),
        (f"{WRITING}filename=best", "trainer.callbacks.filename: invalid best; expected another"),
        (f"{WRITING}filename=x/../previous", "trainer.callbacks.filename: invalid x/../previous; "),
        (
            f"{WRITING}filename=crash-{{step}} --trainer.callbacks.auto_insert_metric_name=false",
            "trainer.callbacks.filename: invalid crash-{step}; expected another name",
        ),
        (
            f"{WRITING}filename=crash-37",
            "trainer.callbacks.filename: invalid crash-37; expected ano",
        ),
        (
            f"{WRITING}filename=../checkpoints/best",
            "invalid ../checkpoints/best; expected a name wi",
        ),
        (f"{WRITING}save_last=true", "trainer.callbacks.save_last: invalid True; expected false"),
        (f"{WRITING}save_last=link", "trainer.callbacks.save_last: invalid link; expected false"),
        (
            f"{WRITING}filename=last --trainer.callbacks.dirpath=runs/../version_3/checkpoints/",
            "trainer.callbacks.filename: invalid last; expected another name",
        ),
        (
            f"{WRITING}filename=a --trainer.callbacks.enable_version_counter=false "
            f"{WRITING}filename=a --trainer.callbacks.monitor=val/loss",
            "trainer.callbacks.filename: invalid a; expected another name for each",
        ),
        (
            f"{CALLBACK}OnExceptionCheckpoint --trainer.callbacks.dirpath=mine",
            "trainer.callbacks: invalid OnExceptionCheckpoint; expected none that saves",
        ),
        ("--trainer.barebones=true", "trainer.barebones: invalid true; expected false"),
    ],
)
def test_a_part_that_cannot_work_is_refused_before_a_folder_is_made(
    refused, small, options, message
):
    code, line = refused("fit", *small, "--trainer.log_every_n_steps=10", *options.split())
    assert (code, message in line) == (2, True), line
    assert not list(Path().glob("**/version_0"))


@pytest.mark.parametrize(
    ("name", "value", "message", "code"),
    [
        ("WANDB_MODE", "banana", "input_value='banana'", 2),
        ("WANDB_DIR", "/proc/nope", "WANDB_DIR: /proc/nope", 6),
    ],
)
def test_an_invalid_variable_of_wandb_is_named(
    refused, small, monkeypatch, name, value, message, code
):
    monkeypatch.setenv(name, value)
    exit_code, line = refused("fit", *small, "--trainer.logger=WandbLogger")
    assert (exit_code, message in line) == (code, True), line


@pytest.mark.parametrize("corpus", ["letters", "sort"])
def test_every_logged_metric_can_be_monitored(sizes, text_file, tmp_path, corpus):
    set_up_libraries()
    text = [f"--data.path={text_file}"]
    if corpus == "sort":
        text = ["--data.corpus=sort", "--data.task.length=4"]
    where = [f"--trainer.default_root_dir={tmp_path}", f"--data.data_dir={tmp_path}"]
    cli = TxlCLI("fit", [*sizes, *text, *where])
    cli.run()
    logged = {*cli.trainer.callback_metrics}
    assert logged <= {*list_metrics(cli.datamodule)}
    assert ("val/answer_accuracy" in logged) == (corpus == "sort")


def test_the_page_on_training_names_every_metric_and_no_other(make_data):
    data = make_data()
    metrics = {*list_metrics(data), *(f"val/{name}" for name in ANSWERS)}
    section = PAGE.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    documented = set()
    for header, rows in re.findall(r"(?m)^\| (`.*)\|.*\n\|---\|---\|\n((?:\|.*\n)+)", section):
        names = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in rows.splitlines()))
        stages = re.findall(r"`(\w+)/\.\.\.`", header)
        documented |= {f"{stage}/{name}" for stage in stages for name in names}
    assert {name.replace("UNIT", data.vocab.unit) for name in documented} == metrics


def test_any_monitor_is_accepted_beside_a_callback_of_another_package_that_may_log_it():
    class Own(Callback):
        pass

    check_callbacks(
        Trainer(accelerator="cpu", callbacks=[EarlyStopping("mine"), Own()]), None, None
    )


@pytest.mark.parametrize(
    "options",
    [
        f"{KEEPING}val/memory_gain --trainer.callbacks.filename=best-{{step}}",
        f"{STOPPING}train/loss --trainer.log_every_n_steps=2",
        f"{WRITING}filename=best --trainer.callbacks.dirpath=mine",
        f"{WRITING}save_last=true --trainer.callbacks.dirpath=mine",
    ],
)
def test_monitors_that_are_logged_in_time_and_names_that_are_free_are_accepted(
    accepted, small, tmp_path, options
):
    accepted("fit", *small, f"--trainer.default_root_dir={tmp_path / 'free'}", *options.split())
    saved = tmp_path / "free" / "version_0" / "checkpoints" / "best.ckpt"
    assert load_checkpoint(saved).saved["global_step"] == 4


ARGUMENTS = {
    "BatchSizeFinder": {},
    "EarlyStopping": {"monitor": "val/loss"},
    "GradientAccumulationScheduler": {"scheduling": {0: 2}},
    "ModelPruning": {"pruning_fn": "l1_unstructured"},
    "OnExceptionCheckpoint": {"dirpath": "crashed"},
    "StochasticWeightAveraging": {"swa_lrs": 1e-3},
    "ThroughputMonitor": {"batch_size_fn": len},
    "Timer": {"duration": "00:00:01:00"},
}
UNUSABLE = {
    "BackboneFinetuning", "BaseFinetuning", "BasePredictionWriter", "BatchSizeFinder",
    "EMAWeightAveraging", "GradientAccumulationScheduler", "LearningRateFinder", "ModelPruning",
    "SpikeDetection", "StochasticWeightAveraging", "WeightAveraging",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*flops_per_batch")
@pytest.mark.filterwarnings("ignore:.*fit.ckpt_path")  # of any Checkpoint
@pytest.mark.parametrize("name", callbacks.__all__)
def test_every_callback_of_lightning_changes_no_step_or_is_refused_in_one_line(
    fit, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    if name == "DeviceStatsMonitor":
        pytest.importorskip("psutil")
    callback = getattr(callbacks, name)(**ARGUMENTS.get(name, {}))
    options = {"max_steps": 3, "val_check_interval": 1, "limit_val_batches": 1}
    logger = CSVLogger(tmp_path, name="all")
    options |= {"logger": logger, "callbacks": [callback], "log_every_n_steps": 1}
    if name in UNUSABLE:
        with pytest.raises(ValueError, match=rf"^trainer\.callbacks: invalid {name}; expected .+$"):
            fit(**options)
        assert not Path(logger.log_dir).exists()
        return
    if isinstance(callback, callbacks.ModelSummary):
        options["enable_model_summary"] = True
    if isinstance(callback, callbacks.ProgressBar):
        options["enable_progress_bar"] = True
    record = fit(**options)
    usual = {**options, "callbacks": [], "logger": CSVLogger(tmp_path, name="alone")}
    assert record.losses == fit(**usual).losses


@pytest.mark.parametrize(
    "pair",
    [
        (WeightAverage(0.5), WeightAverage(0.9)),
        (TimeBudget(1), TimeBudget(2)),
        (ValidationProbe(), ValidationProbe()),
    ],
    ids=lambda pair: type(pair[0]).__name__,
)
def test_a_second_callback_that_keeps_the_same_state_is_refused(fit, pair):
    name = type(pair[0]).__name__
    with pytest.raises(
        ValueError, match=f"^trainer.callbacks: invalid 2 of {name}; expected one, "
    ):
        fit(max_steps=2, callbacks=[*pair])


@pytest.mark.slow
def test_the_table_of_a_profiler_is_printed(small, processes):
    words = [sys.executable, "-m", "txl_lightning", "fit", *small, "--trainer.profiler=simple"]
    done = processes.run(words)
    assert done.returncode == 0, done.stderr
    assert "run_training_epoch" in done.stdout + done.stderr


def test_config_is_saved_whatever_objects_a_callback_has(accepted, small, tmp_path):
    duration = "--trainer.callbacks.duration=00:00:00:30"
    where = f"--trainer.default_root_dir={tmp_path / 'timed'}"
    accepted("fit", *small, f"{CALLBACK}Timer", duration, where)
    saved = yaml.safe_load((tmp_path / "timed" / "version_0" / "config.yaml").read_text())
    assert saved["trainer"]["callbacks"][0]["init_args"]["interval"] == "step"


@pytest.mark.parametrize(
    ("callback", "setting", "value"),
    [
        ("EarlyStopping --trainer.callbacks.monitor=val/nats", "check_on_train_epoch_end", "true"),
        ("ModelCheckpoint", "every_n_epochs", "2"),
        ("ModelCheckpoint", "save_on_train_epoch_end", "true"),
        ("LearningRateMonitor", "logging_interval", "epoch"),
        ("Timer --trainer.callbacks.duration=00:00:00:30", "interval", "epoch"),
    ],
)
def test_a_setting_of_a_callback_that_counts_epochs_is_refused_where_none_ends(
    parse_fit, callback, setting, value
):
    words = [*f"{CALLBACK}{callback}".split(), f"--trainer.callbacks.{setting}={value}"]
    with pytest.raises(ValueError, match=f"^trainer.callbacks.{setting}: invalid .*no epoch ends"):
        parse_fit(*words)
    parse_fit(*words, "--trainer.limit_train_batches=4")


def test_a_checkpoint_after_every_validation_counts_no_epochs(parse_fit):
    settings = parse_fit(f"{CALLBACK}ModelCheckpoint", "--trainer.callbacks.every_n_epochs=1")
    [callback] = settings.trainer.callbacks
    assert callback.init_args.every_n_epochs == 1
