"""People count segments, Lightning counts batches; where a segment has chunks, they differ."""

from lightning.pytorch import Trainer
from lightning.pytorch.loops.progress import _BatchProgress

COUNTS = ("accumulate_grad_batches", "val_check_interval", "limit_train_batches", "overfit_batches")
"""What a Trainer has that counts training batches, where it is a whole number."""


def in_chunks(trainer: Trainer, n_chunk: int) -> Trainer:
    """The same Trainer, whose numbers counted segments and now count their chunks.

    Set after it is made: of overfit_batches it would take its limit of validation, too, which is
    not in chunks.
    """
    for name in COUNTS:
        count = getattr(trainer, name, None)
        if isinstance(count, int):
            setattr(trainer, name, count * n_chunk)
    return trainer


def check_whole_segments(trainer: Trainer, n_chunk: int) -> None:
    """Refuse to take a step, or to end an epoch, when only a part of the rows was read.

    Raises:
        ValueError: with what is allowed.
    """
    for name in ("accumulate_grad_batches", "overfit_batches", "limit_train_batches"):
        count = getattr(trainer, name)
        if isinstance(count, int) and count % n_chunk:
            raise ValueError(
                f"trainer.{name}: invalid {count} with data.batch_chunks: {n_chunk}, "
                f"because a segment is {n_chunk} batches; expected a multiple of {n_chunk}"
            )


def recount(progress: _BatchProgress, was: int, now: int) -> None:
    """Turn what a resumed run has counted, `was` chunks a segment, into `now` of them.

    A segment that was not finished is read again from its first chunk. One batch that is processed
    and not yet completed stays so: Lightning completes it.
    """
    for counts in (progress.current, progress.total):
        finished = counts.processed // was
        counts.ready += finished * (now - was)
        counts.completed = finished * now - (counts.processed - counts.completed)
        counts.started = counts.processed = finished * now
    # Lightning validates by it and does not reset it; of `current` it asks what ready was.
    progress.total.ready = progress.total.processed
