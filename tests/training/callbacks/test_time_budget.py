"""A run with a time budget takes its minutes at any speed, with its learning rate at its end."""

import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.callbacks import LambdaCallback

from txl_lightning.training.callbacks.checkpointing import LastCheckpoint
from txl_lightning.training.callbacks.progress_bar import TokenProgressBar
from txl_lightning.training.callbacks.time_budget import Plan, TimeBudget, Times
from txl_lightning.training.callbacks.validation_probe import FinalValidation
from txl_lightning.training.optimizers import OptimConfig, find_lr_factor
from txl_lightning.training.options import PlanConfig

SIZES = {"n_layer": 1, "n_head": 1, "d_model": 2, "mem_len": 2}
OPTIM = {"schedule": "cosine", "warmup_steps": 20, "min_lr_ratio": 0.01}
PEAK = 3e-3
END = 3e-5


class Machine(LambdaCallback):
    """A clock that advances with computation; records the run's steps and validations.

    `slowness` is a factor by the second; `events` are seconds lost at a step or a validation.
    """

    def __init__(self, step, validation=0.0, slowness=lambda second: 1.0, **events) -> None:
        super().__init__()
        self.now = 0.0
        self.step = step
        self.validation = validation
        self.slowness = slowness
        self.events = events
        self.lrs = []
        self.losses = []
        self.validated = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.lrs.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_before_backward(self, trainer, module, loss):
        self.now += self.step * self.slowness(self.now) + self.lose(f"step_{len(self.lrs)}")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    def on_validation_start(self, trainer, module):
        self.validated.append(trainer.global_step)
        lost = self.lose(f"validation_{len(self.validated)}")
        self.now += self.validation * self.slowness(self.now) + lost

    def lose(self, event: str) -> float:
        return self.events.get(event, 0.0)


@pytest.fixture
def plan(fit, capsys):
    """Train for a minute; return the trainer and the output."""

    def run(machine: Machine, *callbacks, minutes: float | None = 1, **options):
        budgets = [] if minutes is None else [TimeBudget(minutes, clock=lambda: machine.now)]
        settings = {"max_steps": 1600, "val_check_interval": 400, "limit_val_batches": 1}
        settings |= {"sizes": SIZES, "optim": OPTIM} | options
        capsys.readouterr()
        trainer = fit(machine, *budgets, FinalValidation(), *callbacks, **settings)
        return trainer, capsys.readouterr().out

    return run


def lr_of(trainer) -> float:
    return trainer.optimizers[0].param_groups[0]["lr"]


def falls(lrs) -> bool:
    return all(after < before + 1e-12 for before, after in pairwise(lrs))


def expect_end(machine, trainer, seconds=60.0) -> None:
    """Expect a run that has used its time, with the learning rate at its end, and validated."""
    assert machine.now == pytest.approx(seconds, rel=0.05)
    assert lr_of(trainer) == pytest.approx(END, rel=1e-9)
    assert machine.validated[-1] == trainer.global_step == trainer.max_steps == len(machine.lrs)
    peak = machine.lrs.index(max(machine.lrs))
    assert falls(machine.lrs[peak:])
    assert falls(machine.lrs[peak::-1])


@pytest.mark.parametrize(
    "machine",
    [
        Machine(0.5, 1),
        Machine(0.5, 1, lambda second: 1 if second < 30 else 3),
        Machine(0.5, 1, lambda second: 1 if second < 30 else 1 / 3),
        Machine(0.5, 1, step_1=20),
        Machine(0.5, 1, step_30=25),
        Machine(0.5, 1, validation_2=20),
        Machine(2.5, 2.5),
        Machine(0.5, 8),
    ],
    ids=[
        *("steady", "slower half-way", "faster half-way", "compiles", "pauses"),
        *("pauses in a validation", "slow", "long validations"),
    ],
)
def test_a_run_takes_its_minutes_at_any_speed(plan, machine):
    trainer, _ = plan(machine)
    expect_end(machine, trainer)
    # An early one, which is measured, and at most as many as max_steps would have had.
    assert 2 <= len(machine.validated) <= 5
    assert machine.validation != 1 or len(machine.validated) > 2


def test_a_slow_first_validation_is_measured_again_where_one_was_wanted(plan):
    trainer, _ = plan(machine := Machine(0.5, 1, validation_1=10), val_check_interval=1600)
    expect_end(machine, trainer)
    assert len(machine.validated) == 3


def test_a_pause_of_a_minute_is_part_of_five_minutes(plan):
    trainer, _ = plan(machine := Machine(1.5, 3, step_90=60), minutes=5)
    expect_end(machine, trainer, 300)
    assert len(machine.validated) == 5


def test_at_one_speed_the_schedule_is_that_of_the_steps(plan):
    trainer, shown = plan(machine := Machine(0.25, 0.5))
    expect_end(machine, trainer)
    assert machine.validated == [12, 58, 115, 173, 230]
    assert "128 tokens/s here: about 230 steps in 1.0 minutes; validations every 57" in shown
    n_step = trainer.global_step
    expected = [PEAK * find_lr_factor(step, OptimConfig(**OPTIM), n_step) for step in range(n_step)]
    assert machine.lrs[20:] == pytest.approx(expected[20:], abs=0.02 * PEAK)


@pytest.mark.parametrize("machine", [Machine(0.2, 1), Machine(0.01, 0.5)], ids=["soon", "at once"])
def test_a_run_that_reaches_max_steps_first_ends_there(plan, machine):
    trainer, _ = plan(machine, max_steps=160, val_check_interval=40)
    expect_end(machine, trainer, machine.now)
    assert trainer.global_step == 160
    assert machine.now < 40
    assert [step for step in machine.validated if step > 20] == [40, 80, 120, 160]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_warm_up_takes_at_most_a_tenth_of_the_time(plan, schedule):
    optim = OPTIM | {"warmup_steps": 1000, "schedule": schedule}
    trainer, _ = plan(machine := Machine(0.5, 1), optim=optim)
    expect_end(machine, trainer)
    assert machine.lrs.index(max(machine.lrs)) == pytest.approx(0.1 * len(machine.lrs), abs=3)
    assert max(machine.lrs) > 0.9 * PEAK


def test_a_run_without_validations_or_with_accumulated_gradients_takes_its_minutes(plan):
    options = {"limit_val_batches": 0, "enable_progress_bar": True}
    trainer, shown = plan(machine := Machine(0.5), TokenProgressBar(), **options)
    assert (trainer.global_step, machine.now, machine.validated) == (120, 60, [])
    assert "64 tokens/s here: about 120 steps in 1.0 minutes\n" in shown
    assert "trained 120 of 120 steps" in shown
    assert lr_of(trainer) == pytest.approx(END)
    trainer, shown = plan(machine := Machine(0.5, 1), accumulate_grad_batches=2)
    assert trainer.global_step == machine.validated[-1] == len(machine.lrs) / 2
    assert machine.now == pytest.approx(60, rel=0.05)
    assert len(machine.validated) == 9
    assert "64 tokens/s here" in shown


def test_a_killed_run_continues_its_plan(plan, tmp_path):
    whole = Machine(0.5, 1)
    path = tmp_path / "runs" / "checkpoints" / "last.ckpt"
    options = {"minutes": 0.25, "enable_checkpointing": True}
    trainer, _ = plan(whole, LastCheckpoint(5), **options)
    expect_end(whole, trainer, 15)
    for step, slowness in ((6, 1), (12, 1), (12, 3), (12, 1 / 3)):
        part = Machine(0.5, 1)
        rest = Machine(0.5 * slowness, slowness)
        stop = LambdaCallback(on_train_batch_start=lambda t, *_, at=step: stop_at(t, at))
        with pytest.raises(SystemExit):
            plan(part, stop, LastCheckpoint(5), **options)
        saved = torch.load(path, weights_only=True)
        # The time from the checkpoint to the kill, and from there to the resume, does not count.
        rest.now = 1e4
        trainer, _ = plan(rest, LastCheckpoint(5), **options, ckpt_path=path)
        used = saved["txl_lightning"]["plan_state"]["times"]["elapsed"]
        assert used + rest.now - 1e4 == pytest.approx(15, abs=0.75)
        n_step = saved["global_step"]
        assert rest.lrs[0] == whole.lrs[n_step]
        assert falls(rest.lrs)
        assert lr_of(trainer) == pytest.approx(END)
        assert rest.validated[-1] == trainer.global_step == trainer.max_steps
        if slowness == 1:
            assert rest.lrs == pytest.approx(whole.lrs[n_step:], rel=1e-6)
            assert rest.validated == [n for n in whole.validated if n > n_step]
            assert rest.losses == pytest.approx(whole.losses[n_step:], rel=1e-5)
    again = Machine(0.5, 1)
    trainer, shown = plan(again, LastCheckpoint(), **options, ckpt_path=path)
    assert (again.lrs, again.validated, lr_of(trainer)) == ([], [], pytest.approx(END))
    assert "all 0.25 minutes are used; more with --plan.minutes" in shown


def stop_at(trainer, step: int) -> None:
    if trainer.global_step == step:
        raise SystemExit


def test_a_run_killed_in_its_last_validation_only_validates(plan, tmp_path):
    path = tmp_path / "runs" / "checkpoints" / "last.ckpt"
    options = {"minutes": 0.25, "enable_checkpointing": True}
    whole = Machine(0.5, 1)
    plan(whole, LastCheckpoint(1), **options)

    def stop(trainer, module):
        if module.is_fitting and trainer.global_step == whole.validated[-1]:
            raise SystemExit

    with pytest.raises(SystemExit):
        plan(
            Machine(0.5, 1), LambdaCallback(on_validation_start=stop), LastCheckpoint(1), **options
        )
    rest = Machine(0.5, 1)
    trainer, _ = plan(rest, LastCheckpoint(1), **options, ckpt_path=path)
    assert (rest.lrs, rest.validated) == ([], whole.validated[-1:])
    assert lr_of(trainer) == pytest.approx(END)


def test_other_minutes_or_steps_are_planned_minus_the_elapsed_time(plan, tmp_path):
    path = tmp_path / "a.ckpt"
    trainer, _ = plan(Machine(0.5, 1), minutes=0.25)
    trainer.save_checkpoint(path)
    taken = trainer.global_step
    trainer, shown = plan(machine := Machine(0.5, 1), minutes=1, ckpt_path=path)
    assert machine.now + 15 == pytest.approx(60, rel=0.05)
    # On the longer schedule, as with more steps.
    assert machine.lrs[0] == pytest.approx(PEAK * 0.94, rel=0.05)
    assert lr_of(trainer) == pytest.approx(END)
    assert machine.validated[-1] == trainer.global_step
    assert "64 tokens/s here: about" in shown
    # Less than it has used: a last step, and the validation of its plan.
    trainer, _ = plan(machine := Machine(0.5, 1), minutes=0.1, ckpt_path=path)
    assert machine.validated == [trainer.global_step] == [taken + 1]
    assert lr_of(trainer) == pytest.approx(END)
    trainer, shown = plan(Machine(0.5), minutes=None, max_steps=25, ckpt_path=path)
    assert (trainer.global_step, shown) == (25, "")


def test_time_left_is_that_of_the_budget(plan):
    left = []
    budget = LambdaCallback(
        on_train_batch_end=lambda trainer, *_: left.append(trainer.callbacks[1].time_remaining())
    )
    plan(Machine(0.25, 0.5), budget, max_steps=12)
    assert left[:3] == [59.75, 59.5, 59.25]
    with pytest.raises(ValueError, match="minutes: invalid 0; expected a number greater than 0"):
        PlanConfig(0)


class Simulation:
    """A run of one rank or several by Plan and Times alone."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.times = Times()
        self.step = 0
        self.factors = []
        self.n_validation = 0

    def take_step(self, seconds: float, validation_seconds: float) -> None:
        optim = OptimConfig(warmup_steps=10)
        share = self.times.share
        end = self.step / share if share else self.plan.max_steps
        self.factors.append(find_lr_factor(self.step, optim, end, end / 10))
        self.step += 1
        n_recent = self.plan.count_recent_steps(self.times)
        times = self.times.add_step(seconds, self.step, n_recent)
        self.times = self.plan.advance(times, self.step)
        if self.plan.is_validation_due(self.times) or self.times.share == 1:
            self.n_validation += 1
            times = self.times.add_validation(validation_seconds)
            self.times = self.plan.advance(times, self.step, is_validated=True)


@settings(max_examples=40, derandomize=True)
@given(
    st.lists(st.integers(1, 16), min_size=1, max_size=8),
    st.integers(0, 12),
    st.integers(1, 20),
)
def test_random_speeds_use_the_time(speeds, validation_steps, n_wanted):
    run = Simulation(Plan(300.0, 100_000, n_wanted))
    while run.times.share < 1:
        # Another speed in each part of the time.
        seconds = 0.1 * speeds[int(run.times.elapsed / 300 * len(speeds)) % len(speeds)]
        run.take_step(seconds, validation_steps * seconds)
    assert run.times.elapsed == pytest.approx(300, rel=0.05)
    assert falls(run.factors[run.factors.index(max(run.factors)) :])
    assert run.factors[-1] < 0.01
    assert run.n_validation <= 1 + 1.7 * n_wanted


@pytest.mark.slow
def test_two_processes_go_by_the_clock_that_is_ahead(tmp_path, small, processes):
    """Clocks count calls, so that the speed of the machine has no effect."""
    (tmp_path / "slow_clock.py").write_text(
        "import itertools, os\n"
        "from txl_lightning.training.callbacks import time_budget\n"
        "from txl_lightning.__main__ import main\n"
        "seconds = 0.1 * (1 + int(os.environ.get('LOCAL_RANK', 0)))\n"
        "clock = map(seconds.__mul__, itertools.count()).__next__\n"
        "time_budget.TimeBudget.__init__.__defaults__ = None, clock\n"
        "main()\n"
    )
    command = [sys.executable, "slow_clock.py", "fit", *small, "--plan.minutes=0.1"]
    command += ["--trainer.max_steps=100000", "--trainer.val_check_interval=25000"]
    # A progress bar of one of them would call its clock, too.
    command += ["--trainer.devices=2", "--trainer.strategy=ddp"]
    command += ["--trainer.enable_progress_bar=false"]
    done = processes.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tokens/s here: ") == 1
    checkpoint = torch.load(next(tmp_path.rglob("last.ckpt")), weights_only=True)
    times = checkpoint["txl_lightning"]["plan_state"]["times"]
    assert times["share"] == 1
    assert times["validated"] == 1
    # Steps and validations of 0.2 seconds; by the first one's clock there would be twice as many.
    assert times["elapsed"] == pytest.approx(6, abs=0.5)
    assert checkpoint["global_step"] == pytest.approx(22, abs=4)
