"""The folder that a run writes to, and whether the Trainer is fitting: for all callbacks."""

from pathlib import Path

from lightning.pytorch import Trainer


def is_fitting(trainer: Trainer) -> bool:
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of a run, on which all ranks agree together: each of them calls it."""
    return Path(trainer.log_dir or trainer.default_root_dir)
