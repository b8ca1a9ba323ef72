"""All that we write into Lightning's loops, and all that only their private members know."""

import sys
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer


def set_last_step(trainer: Trainer, step: int) -> None:
    """Replace trainer.max_steps, which can only be read."""
    trainer.fit_loop.epoch_loop.max_steps = step


def end_without_epochs(trainer: Trainer) -> None:
    """Let steps alone end a run, whose only epoch never ends."""
    trainer.fit_loop.max_epochs = -1


def need_no_epoch(trainer: Trainer) -> None:
    """Undo Lightning's addition to trainer.min_steps, one whole epoch: no run would stop."""
    if trainer.min_steps is not None and trainer.fit_loop.min_epochs == 1:
        trainer.fit_loop.min_epochs = 0


def set_next_validation(trainer: Trainer, is_due: bool) -> None:
    """Let a validation follow the segment that is read, or let none follow soon."""
    trainer.val_check_batch = trainer.fit_loop.total_batch_idx + 1 if is_due else sys.maxsize


def is_validation_next(trainer: Trainer) -> bool:
    """Return True if Lightning will validate after this segment."""
    # Private, because nothing else knows it before the hooks of the validation.
    loop = trainer.fit_loop
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def validate_now(trainer: Trainer) -> None:
    """Validate between two steps, as Lightning does, from the first segment."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False
    trainer.validating = True
    loop.run()
    trainer.training = True


def log_as_step(trainer: Trainer, step: int) -> None:
    """Let what is logged next count as logged before this step, counted from 0."""
    # Private: loggers count from it, and Lightning continues a finished run one step too low.
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def replace_step_logging(trainer: Trainer, log: Callable[[], None]) -> None:
    """Call `log` where Lightning logs a step: after the hooks that write its checkpoints."""
    # Private, because no hook comes earlier and knows the values.
    trainer._logger_connector.update_train_step_metrics = log


def log_step(trainer: Trainer) -> None:
    """Log the segment that has ended, as Lightning does."""
    connector = trainer._logger_connector
    type(connector).update_train_step_metrics(connector)


def replace_signal_handlers(trainer: Trainer) -> None:
    """Disable Lightning's signal handlers: with them, ranks wait for each other within a step."""
    # Private, because no setting turns them off (the tests with two processes would hang).
    trainer._signal_connector.register_signal_handlers = lambda: None
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None


def dump_state(trainer: Trainer) -> dict[str, Any]:
    """Return a checkpoint of this rank alone."""
    # Private, because trainer.save_checkpoint ends with a barrier.
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
