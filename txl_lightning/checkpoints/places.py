"""Whether a place can be written, found out before the work whose result it is to hold."""

from pathlib import Path

from ..data import StorageError
from . import files


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written in a folder, which is made."""
    try:
        with files.storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            probe = files.part_of(folder / "probe")
            probe.touch()
            probe.unlink()
    except StorageError as error:
        return str(error)
    return None


def check_folder(key: str, folder: str | Path) -> None:
    """Make a folder, and refuse one in which nothing can be kept.

    Raises:
        StorageError: with the key and the reason.
    """
    if problem := unwritable(Path(folder)):
        raise StorageError(f"{key}: {problem}")


def check_file(key: str, path: str | Path | None) -> None:
    """Refuse a file that could not be written, if one is asked for.

    Raises:
        StorageError: with the key and the reason.
    """
    if path is None:
        return
    if Path(path).is_dir():
        raise StorageError(f"{key}: {path} is a folder; it must be a file")
    # Into /dev/stdout can be written by many who cannot write into /dev.
    if Path(path).exists() and not Path(path).is_file():
        return
    if not Path(path).parent.is_dir():
        raise StorageError(f"{key}: {path}: there is no folder {Path(path).parent}")
    check_folder(key, Path(path).parent)
