"""What to try next and what to end early, by W&B's own engine.

Both are functions of the file, the seed and the trials so far, so that a sweep that was broken off
proposes what it would have.
"""

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from .trials import Trial

INSTALL = "pip install 'txl-lightning[sweeps]' and then pip install --no-deps sweeps==0.3.0"
STATES = {
    "finished": "finished",
    # What W&B says of a run that it has stopped; metric.impute is for such.
    "stopped": "killed",
    "failed": "failed",
}


def library() -> ModuleType:
    """The engine.

    Raises:
        ValueError: it is not installed, with the commands that install it.
    """
    with warnings.catch_warnings():
        # It was written for an earlier pydantic.
        warnings.filterwarnings("ignore", "Valid config keys have changed", UserWarning)
        warnings.filterwarnings("ignore", "Support for class-based `config`", DeprecationWarning)
        try:
            # With all that it needs, of which it imports the most when it is first asked.
            import sweeps.bayes_search
        except ImportError as error:
            message = f"sweep: the package {error.name} is missing; {INSTALL}"
            raise ValueError(message) from error
    return sweeps


def propose(config: Mapping[str, Any], seed: int, trials: Sequence[Trial]) -> dict | None:
    """The parameters of the trial after these; None when a grid has no more.

    Raises:
        ValueError: the method cannot vary such a parameter.
    """
    sweeps = library()
    with drawing([seed, len(trials)]), quietly():
        run = sweeps.next_run(config, [as_run(config, trial) for trial in trials])
    return run and {name: plain(given["value"]) for name, given in run.config.items()}


def is_hopeless(config: Mapping[str, Any], others: Sequence[Trial], running: Trial) -> bool:
    """Whether a trial that is running should end now, compared with the others."""
    runs = [as_run(config, trial) for trial in (*others, running)]
    return any(run is runs[-1] for run in library().stop_runs(config, runs))


def as_run(config: Mapping[str, Any], trial: Trial) -> Any:
    """A trial in the engine's words."""
    sweeps, metric = library(), config["metric"]["name"]
    return sweeps.SweepRun(
        name=str(trial.number),
        state=sweeps.RunState(STATES.get(trial.state, "running")),
        config={name: {"value": value} for name, value in trial.parameters.items()},
        history=[{metric: value} for value in trial.history],
    )


def plain(value: Any) -> Any:
    """A number that JSON and a command line can hold."""
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


@contextmanager
def drawing(seeds: list[int]) -> Iterator[None]:
    """Let what is drawn depend on the seeds alone, and change no draw of others."""
    # The engine has no generator of its own.
    before = random.getstate(), np.random.get_state()
    random.seed(str(seeds))
    np.random.seed(seeds)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@contextmanager
def quietly() -> Iterator[None]:
    """Without the optimiser's remarks on a fit to a few points."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        yield
