"""trainer.max_epochs counts passes over the text, as steps."""

import csv
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer

from txl_lightning import CorpusDataModule, LanguageModel, TransformerXLConfig
from txl_lightning.data.stream import Stream
from txl_lightning.data.tokens import TextTokens, VarlenLengths
from txl_lightning.files import dump_yaml
from txl_lightning.training.callbacks.time_budget import TimeBudget
from txl_lightning.training.callbacks.validation_probe import FinalValidation
from txl_lightning.training.optimizers import OptimConfig
from txl_lightning.training.settings import read_given


def run_fit(accepted, folder, *options):
    words = ("--model.net.n_layer=1", "--model.net.n_head=1", "--model.net.d_model=4")
    words += ("--model.net.mem_len=4", "--data.path=text.txt", "--data.vocab=bytes")
    words += ("--data.tgt_len=10", "--data.batch_size=2", "--trainer.val_check_interval=1000")
    words += ("--report.html=false", "--report.sample_len=0", "--trainer.limit_val_batches=1")
    output = accepted("fit", *words, f"--trainer.default_root_dir={folder}", *options)
    return output.out + output.err


def read_columns(path) -> dict[str, dict[str, float]]:
    """Return the values by step of each column of a run's metrics.csv."""
    columns = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            for name in row:
                if row[name]:
                    columns.setdefault(name, {})[row["step"]] = float(row[name])
    return columns


DEFAULT_DISTANCE = "--trainer.val_check_interval=200"


@pytest.fixture(autouse=True)
def text(tmp_path, monkeypatch):
    """A text whose 90 % are 2 rows of 450 bytes: 45 segments of 10 targets."""
    monkeypatch.chdir(tmp_path)
    letters = np.random.default_rng(0).integers(97, 123, 1000).astype(np.uint8)
    (tmp_path / "text.txt").write_bytes(letters.tobytes())


@pytest.mark.parametrize(
    ("options", "n_step"),
    [
        (["--trainer.max_epochs=1"], 45),
        (["--trainer.max_epochs=3"], 135),
        (["--trainer.max_epochs=1", "--trainer.max_steps=20"], 20),
        (["--trainer.max_epochs=1", "--trainer.max_steps=60"], 45),
        (["--trainer.max_epochs=1", "--trainer.accumulate_grad_batches=4"], 12),
        (["--trainer.max_epochs=1", "--data.batch_size=4"], 23),
        # Lightning's own epochs, of so many segments.
        (["--trainer.max_epochs=2", "--trainer.limit_train_batches=4"], 8),
    ],
)
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_run_takes_the_steps_of_its_passes(accepted, options, n_step):
    printed = run_fit(accepted, "runs", *options)
    assert f"trained {n_step} of {n_step} steps" in printed
    assert f"step {n_step}  validation:" in printed
    state = torch.load("runs/version_0/checkpoints/last.ckpt", weights_only=True)
    assert state["global_step"] == n_step
    # The schedule has reached its end.
    [scheduler] = state["lr_schedulers"]
    assert scheduler["last_epoch"] == n_step


@pytest.mark.filterwarnings("ignore:reading from the start of the text")
def test_a_resumed_run_takes_what_remains_of_its_passes(accepted):
    run_fit(accepted, "runs", "--trainer.max_steps=30")
    whole = run_fit(accepted, "runs", "--resume=auto", "--trainer.max_epochs=1")
    assert "trained 45 of 45 steps, 898 tokens" in whole
    again = run_fit(accepted, "runs", "--resume=auto", "--trainer.max_epochs=1")
    assert "all 45 steps are done; more with --trainer.max_epochs" in again
    # With other rows the text begins anew: one of two passes remains, of 23 segments.
    other = ("--data.batch_size=4", "--trainer.max_epochs=2")
    assert "trained 68 of 68 steps" in run_fit(accepted, "runs", "--resume=auto", *other)


@pytest.mark.parametrize(
    ("options", "n_step", "n_segment"),
    [
        # Three steps of a segment; then a step ends where 4 divides the segments.
        (["--trainer.max_epochs=1"], 3 + 12, 48),
        # Epochs of 10 segments: steps end after 4, 8 and 10.
        (["--trainer.max_epochs=2", "--trainer.limit_train_batches=10"], 3 + 3 + 3, 20),
    ],
    ids=["passes", "epochs"],
)
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_run_resumed_with_another_accumulation_reads_all_that_remains(
    accepted, options, n_step, n_segment
):
    run_fit(accepted, "runs", *options, "--trainer.max_steps=3")
    options = (*options, "--resume=auto", "--trainer.accumulate_grad_batches=4")
    assert f"trained {n_step} of {n_step} steps" in run_fit(accepted, "runs", *options)
    state = torch.load("runs/version_0/checkpoints/last.ckpt", weights_only=True)
    assert state["txl_lightning"]["position"]["consumed"] == n_segment
    # What is whole is not continued, whatever the accumulation.
    again = run_fit(accepted, "runs", *options[:-1])
    assert f"all {n_step} steps are done" in again


@pytest.mark.parametrize("share", ["0.01", "0.0"])
def test_a_share_of_a_pass_to_overfit_has_a_segment_or_is_refused(accepted, refused, share):
    option = f"--trainer.overfit_batches={share}"
    if share == "0.0":
        # No limit, as in Lightning.
        assert "trained 45 of 45" in run_fit(accepted, "runs", "--trainer.max_epochs=1", option)
        return
    words = ("--trainer.max_steps=4", "--data.path=text.txt", "--data.vocab=bytes")
    code, message = refused("fit", *words, "--data.tgt_len=10", "--data.batch_size=2", option)
    assert code == 2
    assert "trainer.overfit_batches: invalid 0.01; expected 0, or a share with at least" in message


@pytest.mark.filterwarnings("ignore:reading from the start of the text")
def test_passes_before_other_rows_count_in_each_later_resume(accepted):
    run_fit(accepted, "runs", "--trainer.max_steps=45")
    other = ("--resume=auto", "--data.batch_size=4", "--trainer.max_epochs=3")
    run_fit(accepted, "runs", *other, "--trainer.max_steps=50")
    # One pass was done before; of the two others, of 23 segments, 41 segments remain.
    assert "trained 91 of 91 steps" in run_fit(accepted, "runs", *other)


@pytest.mark.filterwarnings("ignore:.*allow_mismatch is true", "ignore:reading from the start")
def test_a_pass_over_another_text_is_whole(accepted, tmp_path):
    run_fit(accepted, "runs", "--trainer.max_epochs=1")
    (tmp_path / "other.txt").write_bytes((tmp_path / "text.txt").read_bytes()[::-1])
    options = ("--data.path=other.txt", "--data.allow_mismatch=true", "--ckpt_path=runs/version_0")
    # 45 steps more, from a best.ckpt of step 45.
    assert "trained 90 of 90" in run_fit(accepted, "new", *options, "--trainer.max_epochs=1")


def test_minutes_train_at_most_the_passes(accepted):
    options = ("--plan.minutes=5", "--trainer.max_epochs=1")
    assert "trained 45 of 45 steps" in run_fit(accepted, "runs", *options)
    again = run_fit(accepted, "runs", "--resume=auto", *options)
    assert "all 45 steps are done; more with --trainer.max_epochs" in again
    assert "minutes are used up" not in again


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reading from the start of the text")
def test_a_sharded_run_resumed_with_other_rows_ends_its_schedule_and_is_validated(
    accepted, processes
):
    def start(*words):
        done = processes.run([sys.executable, "-m", "txl_lightning", *words])
        assert done.returncode == 0, done.stdout + done.stderr
        return SimpleNamespace(out=done.stdout, err=done.stderr)

    sharded = ("--trainer.strategy=fsdp2", "--trainer.devices=1", "--trainer.precision=32-true")
    options = ("--plan.validations=4", DEFAULT_DISTANCE, "--trainer.log_every_n_steps=1")
    resumed = ("--resume=must", "--trainer.max_epochs=1", "--data.batch_size=4")
    kinds = {"alone": (accepted, ()), "sharded": (start, sharded)}
    for name, (run, others) in kinds.items():
        run_fit(run, name, *options, "--trainer.max_steps=20", *others)
        run_fit(run, name, *options, *resumed, *others)
    expected, found = (read_columns(f"{name}/version_0/metrics.csv") for name in kinds)
    for column in ("train/lr", "val/nats"):
        assert [*found[column]] == [*expected[column]]
        assert [*found[column].values()] == pytest.approx([*expected[column].values()], rel=1e-4)


def test_minutes_without_a_number_of_steps_are_refused(train):
    # A schedule without an end, for which no number is needed.
    with pytest.raises(ValueError, match=r"^trainer\.max_steps: invalid -1; .* TimeBudget plans"):
        train(max_epochs=-1, callbacks=[TimeBudget(1)], schedule="constant")


@pytest.fixture
def train(tmp_path):
    """Train in Python with a plain Trainer; return it."""

    def run(schedule="cosine", **options) -> Trainer:
        data = CorpusDataModule(path="text.txt", vocab="bytes", tgt_len=10, batch_size=2)
        config = TransformerXLConfig(n_layer=1, n_head=1, d_model=4, mem_len=4, n_token=256)
        silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        options = dict.fromkeys(silent, False) | {"limit_val_batches": 0} | options
        trainer = Trainer(accelerator="cpu", **options)
        trainer.fit(LanguageModel(config, OptimConfig(schedule=schedule)), datamodule=data)
        return trainer

    return run


def test_epochs_of_a_trainer_in_python_are_passes(train):
    assert train(max_epochs=2, max_steps=200).global_step == 90


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_epochs": 3}, "trainer.min_epochs: invalid 3"),
        ({"reload_dataloaders_every_n_epochs": 1}, "trainer.reload_dataloaders_every_n_epochs"),
        ({"check_val_every_n_epoch": 2}, "trainer.check_val_every_n_epoch: invalid 2"),
        ({"min_steps": 9}, "trainer.min_steps: invalid 9; expected at most trainer.max_steps"),
    ],
    ids=str,
)
def test_a_trainer_in_python_that_goes_by_epochs_is_refused(train, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        train(max_steps=6, **options)


@pytest.mark.parametrize(
    "epochs", [{}, {"limit_train_batches": 3}, {"overfit_batches": 2}], ids=str
)
def test_a_loader_that_would_read_the_text_from_its_beginning_again_is_refused(train, epochs):
    options = {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}
    message = r"^trainer\.reload_dataloaders_every_n_epochs: invalid 1; expected 0"
    with pytest.raises(ValueError, match=message):
        train(**options, **epochs)


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_epochs_that_the_steps_allow_are_validated_and_more_are_refused(train):
    class Count(Callback):
        n_validation = 0

        def on_validation_end(self, *_):
            self.n_validation += 1

    # Epochs of 8 segments are 3 steps.
    options = {"limit_train_batches": 8, "accumulate_grad_batches": 3, "max_steps": 7}
    options |= {"limit_val_batches": 1, "num_sanity_val_steps": 0}
    with pytest.raises(ValueError, match=r"^trainer\.min_epochs: invalid 3; expected at most 2"):
        train(min_epochs=3, max_epochs=5, **options)
    # Lightning ends fast_dev_run itself, and adds an epoch to min_steps.
    assert train(min_epochs=3, max_epochs=5, **options | {"fast_dev_run": True}).global_step == 1
    least = {"min_epochs": 2}, {"min_steps": 1, "max_steps": 2}
    for limits, (n_step, n_validation) in zip(least, ((7, 3), (2, 1)), strict=True):
        count = Count()
        trainer = train(max_epochs=5, callbacks=[FinalValidation(), count], **options | limits)
        assert (trainer.global_step, count.n_validation) == (n_step, n_validation)


@pytest.mark.parametrize(
    ("configs", "words", "expected"),
    [
        ([], ["--trainer.max_epochs=3"], True),
        ([], ["--trainer.max_epochs=3", "--trainer.max_steps=5"], False),
        ([{"trainer": {"max_steps": 9}}], ["--trainer.max_epochs", "3"], True),
        ([{"trainer": {"max_steps": 9}}, {"trainer": {"max_epochs": 3}}], [], True),
        ([{"trainer": {"max_epochs": 3}}, {"trainer": {"max_steps": 9}}], [], False),
        ([{"trainer": {"max_epochs": 3, "max_steps": 9}}], [], False),
        ([{"trainer": None}, {}], [], False),
        ([], ["--trainer.max_epochs=-1"], False),
        ([{"trainer": {"max_epochs": 3}}, {"trainer": {"max_epochs": -1}}], [], False),
        ([{"trainer": {"max_epochs": 3}}], ["--data.path", "max_steps"], True),
    ],
)
def test_what_is_given_later_decides_between_steps_and_passes(configs, words, expected):
    options = [word for config in configs for word in ("--config", dump_yaml(config))]
    given = read_given([*options, *words])
    assert (given.get("trainer.max_steps") == -1) is expected


def test_passes_of_segments_of_varying_length_are_counted_exactly():
    ids = np.arange(200) % 7
    stream = Stream(TextTokens(ids), 2, VarlenLengths(10, 1))
    passes = [stream.lengths.find_bounds(stream.n_target, n)[0] for n in range(100)]
    assert [stream.count_segments(n) for n in range(4)] == [
        next(i for i, n_pass in enumerate(passes) if n_pass == n) for n in range(4)
    ]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--trainer.max_epochs=1"], [15, 30, 45]),
        (["--trainer.max_epochs=1", "--trainer.accumulate_grad_batches=4"], [4, 8, 12]),
        (["--trainer.max_steps=10"], [3, 6, 9, 10]),
    ],
)
def test_a_number_of_validations_is_spread_over_the_steps_that_training_counts(
    accepted, options, steps
):
    printed = run_fit(accepted, "runs", DEFAULT_DISTANCE, "--plan.validations=3", *options)
    assert re.findall(r"step (\d+)  validation:", printed) == [*map(str, steps)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--trainer.val_check_interval=9"], "null with trainer.val_check_interval 9"),
        (
            ["--trainer.max_steps=-1", "--model.optim.schedule=constant"],
            "null in a run without trainer.max_steps and trainer.max_epochs",
        ),
    ],
)
def test_a_number_of_validations_is_refused_beside_their_distance_and_without_an_end(
    refused, options, expected
):
    code, line = refused("fit", "--data.path=text.txt", "--plan.validations=3", *options)
    assert (code, line[: line.index(";")]) == (2, "plan.validations: invalid 3")
    assert expected in line
