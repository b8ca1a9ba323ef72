"""Checks of the callbacks of a config: their folders, and the metrics that they monitor."""

from lightning.pytorch import Callback

from ..data.datamodule import CorpusDataModule
from ..errors import require
from ..files import local_path
from ..model.reading import readings

OUR_PACKAGES = {"lightning", "txl_lightning"}
TRAINING = ("lr", "memory_bytes", "peak_memory_bytes", "mem_filled", "tokens_seen", "grad_norm")
SPEED = ("tokens_per_second", "seconds")
PROBED = ("tokens_seen", "memory_gain", "memory_gain_error")
ANSWERS = ("token_accuracy", "answer_accuracy")


def check_callbacks(callbacks: list[Callback], data: CorpusDataModule) -> None:
    """Refuse folders and monitors before the run, not at its first checkpoint or validation."""
    for each in callbacks:
        # AtomicCheckpointIO would write to a folder of that name on this machine.
        folder = getattr(each, "dirpath", None) or "."
        local_path("trainer.callbacks.dirpath", folder, "; checkpoint.mirror copies runs to one")
    packages = {type(each).__module__.partition(".")[0] for each in callbacks}
    # Callbacks of other packages may log any metric.
    if not packages <= OUR_PACKAGES:
        return
    names = list_metrics(data)
    for each in callbacks:
        monitor = getattr(each, "monitor", None)
        is_logged = monitor is None or monitor in names
        require(is_logged, "trainer.callbacks.monitor", monitor, f"one of {', '.join(names)}")


def list_metrics(data: CorpusDataModule) -> list[str]:
    """Return the names of all metrics that a run may log, those of validation first."""
    names = {"val": (*PROBED, *(ANSWERS if data.store.example_len else ()))}
    names["train"] = (*TRAINING, *SPEED)
    return [
        f"{stage}/{name}"
        for stage, others in names.items()
        for name in ("loss", *readings(0.0, data.vocab.unit, data.bytes_per_token(stage)), *others)
    ]
