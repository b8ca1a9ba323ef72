"""The folder that a run writes to."""

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger


def is_fitting(trainer: Trainer) -> bool:
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of a run, on which all ranks agree together: each of them calls it."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def find_writers_elsewhere(trainer: Trainer, folder: Path) -> list[str]:
    """Name a config's loggers, profiler and callbacks that write outside of the run's folder.

    Not W&B and TensorBoard in the folder of runs: their files are kept there.
    """
    root, found = Path(trainer.default_root_dir).resolve(), []
    writers = [("logger", each) for each in trainer.loggers] + [("profiler", trainer.profiler)]
    for option, writer in [*writers, *(("callbacks", each) for each in trainer.callbacks)]:
        places = (getattr(writer, key, None) for key in ("log_dir", "save_dir", "dirpath"))
        place = Path(next(filter(None, places), folder)).resolve()
        is_ours = isinstance(writer, WandbLogger | TensorBoardLogger) and place.is_relative_to(root)
        if not is_ours and not place.is_relative_to(folder.resolve()):
            name = f"trainer.{option}: {type(writer).__name__}"
            found.append(f"{name} writes to {place}, outside of the run's folder {folder}")
    return found
