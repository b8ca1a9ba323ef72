"""Atomic files and folders, checksums, JSON and YAML, and checks for writable paths."""

import csv
import fcntl
import hashlib
import json
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from .errors import TYPE_WORDS, DataError, StorageError, require

PACKAGE = Path(__file__).parent
DEEPEST, LONGEST_YAML = 100, 100_000
"""Limits of a YAML file: nesting levels, and characters with aliases expanded."""
COUNTS = ("step", "tokens_seen", "seconds")  # ends of names in metrics.csv


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file atomically: `write` writes a temporary file, which is then renamed.

    Missing folders are created. After a StorageError the old file is unchanged.
    """
    part = path.with_name(f".{path.name}.{host_name()}.{os.getpid()}.part")
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(part)
            flush_to_disk(part)
            os.replace(part, path)
            flush_to_disk(path.parent)
        finally:
            part.unlink(missing_ok=True)


def create_folder(
    folder: Path, fill: Callable[[Path], object], is_usable: Callable[[], bool] | None = None
) -> None:
    """Create a folder atomically, unless it exists: fill a temporary folder and rename it.

    Of several processes one fills it and the others wait. An unusable existing folder is replaced.
    """
    is_usable = is_usable or folder.is_dir
    if is_usable():
        return
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if is_usable():
                return
            # Remove partial content of a process that died.
            for left in folder.parent.glob(f"{folder.name}.part-*"):
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(
                dir=folder.parent, prefix=f"{folder.name}.part-", ignore_cleanup_errors=True
            ) as part:
                fill(Path(part))
                os.chmod(part, 0o755)
                if folder.is_dir():
                    shutil.rmtree(folder)
                os.replace(part, folder)


def lock_folder(folder: Path) -> int:
    """Create a folder and lock it until the handle that is returned is closed.

    StorageError if another process has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StorageError(f"{folder}: another process trains there") from error
    except OSError:
        # Not every file system has locks.
        pass
    return handle


def write_text(text: str, path: Path) -> None:
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(value: Mapping[str, Any], path: Path) -> None:
    write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", path)


def read_json(path: Path, shape: Any = dict, refusal: type[ValueError] = DataError) -> Any:
    """Return the content of a JSON file of a given shape (see `require_shape`).

    Raises:
        refusal: damaged, not JSON, or of another shape; the message names the file.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise refusal(f"{path}: damaged, or not JSON") from error
    try:
        require_shape("content", content, shape)
    except ValueError as error:
        raise refusal(f"{path}: {error}") from error
    return content


def require_shape(key: str, content: Any, shape: Any) -> None:
    """Raise ValueError unless what JSON gave is of a type, or an object of shapes by key.

    The shape of the key `...` is that of every value.
    """
    kind = dict if isinstance(shape, dict) else shape
    is_possible = type(content) is kind and (kind is not int or abs(content) < 1 << 63)
    require(is_possible, key, repr(content), TYPE_WORDS.get(kind.__name__, "settings by name"))
    if isinstance(shape, dict):
        for name, part in shape.items():
            for each in content if name is ... else [name]:
                require_shape(each, content.get(each), part)


def read_log(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a metrics.csv, if there is one; the last may have been cut by a kill.

    DataError where a cell is not a number.
    """
    try:
        with (path if path.is_file() else Path(os.devnull)).open(encoding="utf-8") as file:
            # Row by row, which takes a third of the memory.
            for row in csv.DictReader((line for line in file if line[-1] == "\n"), restval=""):
                int(row["step"])
                for name, cell in row.items():
                    # Losses may be infinite; counts not, nor seconds beyond those of a timedelta.
                    if not abs(float(cell or 0)) < 8e13 and str(name).endswith(COUNTS):
                        raise ValueError(f"{name} {cell}")
                yield row
    except (LookupError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: damaged ({error}); mend it, or move it away") from error


def load_yaml(text: str | bytes) -> Any:
    """Load YAML; aliases that expand too far are a YAMLError, impossible dates a ValueError."""
    check_yaml(text)
    return yaml.safe_load(text)


def check_yaml(text: str | bytes) -> None:
    """Raise YAMLError if aliases expand too far, or nesting is too deep."""
    sizes: dict[str, float] = {}
    # Of what is open: its anchor, and its size so far as if it had no aliases.
    levels: list[list[Any]] = [[None, 0]]
    for event in yaml.parse(text):
        match event:
            case yaml.CollectionStartEvent():
                levels.append([event.anchor, 0])
                # Until it is closed: it would be inside itself.
                sizes[event.anchor] = math.inf
            case yaml.CollectionEndEvent():
                anchor, size = levels.pop()
                sizes[anchor] = size
                levels[-1][1] += size
            case yaml.ScalarEvent():
                sizes[event.anchor] = size = len(event.value) + 1
                levels[-1][1] += size
            case yaml.AliasEvent():
                levels[-1][1] += sizes.get(event.anchor, 0)
        if len(levels) > DEEPEST or levels[-1][1] > len(text) + LONGEST_YAML:
            raise yaml.YAMLError("nested too deeply, or too long with its aliases written out")


def configs_folder() -> Path:
    """Return the folder of the given configs: in the package if installed, else beside it."""
    folder = PACKAGE / "configs"
    return folder if folder.is_dir() else PACKAGE.parent / "configs"


def find_config(name: str) -> str:
    """Return the path of the given config of this name; any other name as it is."""
    given = os.fspath(configs_folder() / f"{name.removesuffix('.yaml')}.yaml")
    # Unlike Path's, this takes YAML in place of a name.
    return given if os.path.isfile(given) and not os.path.isfile(name) else name


def host_name() -> str:
    # Without its domain.
    return platform.node().split(".")[0]


def is_running(pid: int) -> bool:
    """Return True if another process of this machine has this id."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return pid != os.getpid()


def flush_to_disk(path: Path) -> None:
    # Of a folder, its names.
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Raise StorageError with the path and the free space if a file cannot be written."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch.save makes a RuntimeError of an OSError.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        existing = next(folder for folder in path.absolute().parents if folder.is_dir())
        room = f"{shutil.disk_usage(existing).free:,} bytes free"
        raise StorageError(f"{path}: cannot be written ({cause.strerror}; {room})") from error


def find_write_problem(folder: Path) -> str | None:
    """Create a folder; return the reason if it is not writable, or None."""
    try:
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except StorageError as error:
        return str(error)
    return None


def check_folder_writable(key: str, folder: str | Path) -> None:
    """Create a folder before the work whose results it will hold, or raise StorageError."""
    if problem := find_write_problem(Path(folder)):
        raise StorageError(f"{key}: {problem}")


def check_file_writable(key: str, path: str | Path | None) -> None:
    """Raise StorageError for a file, if one is given, that could not be written after the work."""
    path = Path(path or os.devnull)
    if path.is_dir():
        raise StorageError(f"{key}: invalid {path}, a folder; expected a file")
    # /dev/stdout may be writable although /dev is not.
    if path.exists() and not path.is_file():
        return
    if not path.parent.is_dir():
        raise StorageError(f"{key}: {path}: there is no folder {path.parent}")
    check_folder_writable(key, path.parent)
