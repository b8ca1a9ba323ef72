"""A run with a time budget takes about equally long on slow and fast machines."""

import sys
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from txl_lightning.training.callbacks.checkpointing import LastCheckpoint
from txl_lightning.training.callbacks.progress_bar import TokenProgressBar
from txl_lightning.training.callbacks.throughput import PlanConfig, TimeBudget
from txl_lightning.training.callbacks.validation_probe import ValidationProbe
from txl_lightning.training.optimizers import lr_factor

SIZES = {"n_layer": 1, "n_head": 1, "d_model": 2, "mem_len": 2}
OPTIM = {"schedule": "cosine", "warmup_steps": 20}


class Machine(LambdaCallback):
    """A clock that advances with computation; records the run's steps and validations."""

    def __init__(self, step: float, validation: float = 0.0, first: float = 0.0) -> None:
        super().__init__()
        self.now, self.step, self.validation, self.first = 0.0, step, validation, first
        self.lrs, self.losses, self.validated, self.slower_from = [], [], [], None

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.lrs.append(trainer.optimizers[0].param_groups[0]["lr"])
        slow = self.slower_from is not None and trainer.global_step >= self.slower_from
        self.now += self.step * (10 if slow else 1) + (self.first if batch_idx == 0 else 0)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    def on_validation_start(self, trainer, module):
        self.now += self.validation
        self.validated.append(trainer.global_step)


@pytest.fixture
def plan(fit, capsys):
    """Train for a minute; return the machine, the trainer, and the output."""

    def run(machine: Machine, *callbacks, minutes: float | None = 1, **options):
        budget = TimeBudget(minutes, clock=lambda: machine.now)
        settings = {"max_steps": 160, "val_check_interval": 40, "limit_val_batches": 1}
        settings |= {"sizes": SIZES, "optim": OPTIM} | options
        capsys.readouterr()
        trainer = fit(machine, budget, *callbacks, **settings)
        return trainer, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("machine", "validated", "line"),
    [
        (Machine(0.5, 1), [7, 27, 54, 81, 108], "64 tokens/s here: 108 steps, about 1.0 "),
        # Compiling counts towards the budget, but not as the time of a step.
        (Machine(0.5, 1, 20), [6, 17, 34, 51, 68], "64 tokens/s here: 68 steps, about 1.0 "),
        (Machine(2.5, 5), [6, 9, 18], "13 tokens/s here: 18 steps, about 1.0 minutes; validations"),
        (Machine(0.25, 0.5), [13, 40, 80, 120, 160], "128 tokens/s here: 160 steps, about 0.7 "),
        (Machine(30, 20), [6, 7], "7 steps, about 4.2 minutes; validations every 7 steps"),
    ],
    ids=["middling", "compiles", "slow", "fast", "hopeless"],
)
def test_steps_schedule_and_validations_fit_in_the_time(plan, machine, validated, line):
    trainer, shown = plan(machine)
    first, *_, last = validated
    assert machine.validated == validated
    assert trainer.global_step == trainer.max_steps == last
    assert line in shown
    assert machine.now == pytest.approx(60, rel=0.05) or last in (160, 7)
    config = replace(trainer.lightning_module.optim, warmup_steps=min(20, last // 10))
    planned = [3e-3 * lr_factor(step, config, last) for step in range(last)]
    assert machine.lrs[first:] == pytest.approx(planned[first:], rel=1e-12)


def test_only_steps_are_planned_without_validations_and_each_as_all_of_its_segments(plan):
    machine, options = Machine(0.5), {"limit_val_batches": 0, "enable_progress_bar": True}
    trainer, shown = plan(machine, TokenProgressBar(ValidationProbe(0)), **options)
    assert (trainer.global_step, machine.now, machine.validated) == (120, 60, [])
    assert "120 steps, about 1.0 minutes\n" in shown
    _, shown = plan(machine := Machine(0.5, 1), accumulate_grad_batches=2, val_check_interval=80)
    assert machine.validated == [6, 13, 26, 39, 52]
    assert "64 tokens/s here: 52 steps, about 0.9 minutes; validations every 13 steps" in shown


def test_run_on_a_machine_that_becomes_slower_ends_validated_and_saved(plan, tmp_path):
    machine = Machine(0.5, 1)
    machine.slower_from = 60
    saves = {"enable_checkpointing": True}
    trainer, shown = plan(machine, LastCheckpoint(), **saves)
    # 33 seconds until then, and 5 seconds for each later step.
    assert trainer.global_step == machine.validated[-1] == 72
    assert "slower than planned: ended after 1.6 minutes, before its last step" in shown
    path = tmp_path / "runs" / "checkpoints" / "last.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == 72
    # Resumed, it is still too late.
    trainer, shown = plan(Machine(0.5, 1), LastCheckpoint(), **saves, ckpt_path=path)
    assert (trainer.global_step, "slower than planned: ended" in shown) == (72, True)


def test_resumed_run_keeps_its_plan_bit_for_bit_on_a_faster_machine(plan, tmp_path):
    whole, path = Machine(0.5, 1), tmp_path / "runs" / "checkpoints" / "last.ckpt"
    options = {"minutes": 0.25, "enable_checkpointing": True}
    trainer, _ = plan(whole, LastCheckpoint(), **options)
    assert whole.validated == [6, 7, 14, 21]
    wanted = trainer.lightning_module.state_dict()
    for step in (6, 10, 14):
        part, rest = Machine(0.5, 1), Machine(0.01)
        stop = LambdaCallback(on_train_batch_start=lambda t, *_, at=step: stop_at(t, at))
        with pytest.raises(SystemExit):
            plan(part, stop, LastCheckpoint(5), **options)
        at = torch.load(path, weights_only=True)["global_step"]
        trainer, shown = plan(rest, LastCheckpoint(), **options, ckpt_path=path)
        assert "here:" not in shown
        assert rest.validated == [n for n in whole.validated if n > at]
        assert rest.lrs == whole.lrs[at:]
        assert rest.losses == whole.losses[at:]
        state = trainer.lightning_module.state_dict()
        assert all(torch.equal(wanted[name], state[name]) for name in state)


def stop_at(trainer, step: int) -> None:
    if trainer.global_step == step:
        raise SystemExit


def test_changed_minutes_are_planned_again_minus_the_elapsed_time(plan, tmp_path):
    path = tmp_path / "a.ckpt"
    trainer, _ = plan(Machine(0.5, 1), minutes=0.25)
    trainer.save_checkpoint(path)
    trainer, shown = plan(machine := Machine(0.5, 1), minutes=0.5, max_steps=320, ckpt_path=path)
    assert "64 tokens/s here: 36 steps, about 0.5 minutes; validations every 6 steps" in shown
    assert machine.now < 15
    trainer, shown = plan(Machine(0.5), minutes=None, max_steps=25, ckpt_path=path)
    assert (trainer.global_step, shown) == (25, "")


def test_time_left_is_that_of_the_budget_until_the_run_is_planned(plan):
    left = []
    budget = LambdaCallback(
        on_train_batch_end=lambda t, *_: left.append(t.callbacks[1].time_remaining())
    )
    plan(Machine(0.25, 0.5), budget, max_steps=16)
    assert left == [*(60 - 0.25 * n for n in range(1, 14)), None, None, None]
    with pytest.raises(ValueError, match="minutes: invalid 0; expected greater than 0, or null"):
        PlanConfig(0)


@pytest.mark.slow
def test_two_processes_take_the_same_steps(tmp_path, small, processes):
    command = [sys.executable, "-m", "txl_lightning", "fit", *small, "--plan.minutes=0.1"]
    command += ["--trainer.max_steps=100000", "--trainer.val_check_interval=25000"]
    command += ["--trainer.devices=2", "--trainer.strategy=ddp"]
    done = processes.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tokens/s here: ") == 1
    checkpoint = torch.load(next(tmp_path.rglob("last.ckpt")), weights_only=True)
    took_all = checkpoint["global_step"] == checkpoint["callbacks"]["TimeBudget"]["plan"][0]
    assert took_all != ("slower than planned: ended after" in done.stdout)
