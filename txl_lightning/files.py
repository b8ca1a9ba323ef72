"""Atomic files and folders, JSON and YAML, included configs, and checks of writable paths."""

import glob
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import yaml
from filelock import FileLock

from .errors import TYPE_WORDS, DataError, StorageError, print_notice, require, require_path

PACKAGE = Path(__file__).parent
MAX_YAML_DEPTH = 100
LFS_POINTER = b"version https://git-lfs"  # the beginning of what Git has in place of a large file
# Files by which folders of ours are known, and a part of their content.
RUN_FILE = "run.json"
STORE_FILE = "manifest.json"
SWEEP_FILE = "journal.log"
OWN_MARKS = {RUN_FILE: b'"max_steps"', STORE_FILE: b'"n_document"', SWEEP_FILE: b'"op_code"'}
MARK_WITHIN = 1 << 16  # bytes; others may be large
MIN_AGE = 2 * 10**9  # nanoseconds after which a change certainly gets another time stamp
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
URL = re.compile(r"[A-Za-z][\w+.-]+:/")  # also after Path has removed a slash

T = TypeVar("T")


def replace_file(path: Path, write: Callable[[Path], T]) -> T:
    """Replace a file atomically: `write` writes a temporary file, which is then renamed.

    Create missing folders, and return the result of `write`. After a StorageError the old file is
    unchanged. A pipe or a device is written to directly.
    """
    part = path.with_name(f".{path.name}.{find_host_name()}.{os.getpid()}.part")
    with explain_write_errors(path):
        if path.exists() and not path.is_file():
            return write(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            result = write(part)
            flush_to_disk(part)
            os.replace(part, path)
            flush_to_disk(path.parent)
        finally:
            part.unlink(missing_ok=True)
    return result


def create_folder(
    folder: Path, fill: Callable[[Path], object], is_usable: Callable[[], bool] | None = None
) -> bool:
    """Create a folder atomically, unless it exists: fill a temporary folder and rename it.

    Return True if this process has filled it; others wait. An unusable folder is replaced.
    """
    is_usable = is_usable or folder.is_dir
    if is_usable():
        return False
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if is_usable():
                return False
            # Partial content of processes that died.
            for part in folder.parent.glob(f".{glob.escape(folder.name)}.part-*"):
                shutil.rmtree(part)
            with tempfile.TemporaryDirectory(
                dir=folder.parent, prefix=f".{folder.name}.part-", ignore_cleanup_errors=True
            ) as part:
                fill(Path(part))
                os.chmod(part, 0o755)
                if folder.is_dir():
                    shutil.rmtree(folder)
                os.replace(part, folder)
    return True


@contextmanager
def name_in_utf8(path: Path) -> Iterator[Path]:
    """Yield a name of a file for libraries that take only UTF-8: its own, or that of its handle."""
    name = os.fspath(path)
    if name == name.encode(errors="ignore").decode():
        yield path
        return
    with path.open("rb") as file:
        yield Path(f"/dev/fd/{file.fileno()}")


def write_text(text: str, path: Path) -> None:
    # A name of a file in the text may be no UTF-8.
    content = text.encode(errors="backslashreplace")
    replace_file(path, lambda part: part.write_bytes(content))


def write_json(value: Mapping[str, Any], path: Path) -> None:
    write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", path)


def read_json(path: Path, shape: Any = dict, refusal: type[ValueError] = DataError) -> Any:
    """Return the content of a JSON file; `refusal` if it is damaged or not of the given shape."""
    return parse_json(str(path), path.read_bytes(), shape, refusal)


def parse_json(
    name: str, text: bytes, shape: Any = dict, refusal: type[ValueError] = DataError
) -> Any:
    """Return the content of JSON of a given shape; `name` is that of its file in errors."""
    try:
        content = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise refusal(f"{name}: damaged, or not JSON") from error
    try:
        require_shape("content", content, shape)
    except ValueError as error:
        raise refusal(f"{name}: {error}") from error
    return content


def require_shape(key: str, content: Any, shape: Any) -> None:
    """Raise ValueError unless content of JSON is of a type, or an object of shapes by key.

    The shape of the key `...` is the shape of every value.
    """
    kind = dict if isinstance(shape, dict) else shape
    is_valid = type(content) is kind and (kind is not int or abs(content) < 1 << 63)
    require(is_valid, key, repr(content), TYPE_WORDS.get(kind.__name__, "settings by name"))
    if isinstance(shape, dict):
        for name, part in shape.items():
            for each in content if name is ... else [name]:
                require_shape(each, content.get(each), part)


class YamlLoader(yaml.SafeLoader):
    """Loads plain YAML; aliases, which can stand for endless texts, and keys given twice, of which
    only the last would count, are refused."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent) or len(self.states) > MAX_YAML_DEPTH:
            raise yaml.YAMLError(f"aliases and more than {MAX_YAML_DEPTH} levels are not supported")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for name, _ in node.value:
            key = self.construct_object(name, deep=True)
            line = name.start_mark.line + 1
            if isinstance(key, Hashable) and key in lines:
                raise yaml.YAMLError(f"{key}: given in line {lines[key]}, and again in line {line}")
            lines |= {key: line} if isinstance(key, Hashable) else {}
        settings = super().construct_mapping(node, deep)
        # A class with an empty section is one without settings.
        if "class_path" in settings and settings.get("init_args", ...) is None:
            del settings["init_args"]
        return settings


def load_yaml(text: str | bytes) -> Any:
    """Load plain YAML; anything else is a YAMLError, an impossible date a ValueError."""
    return yaml.load(text, YamlLoader)


class YamlDumper(yaml.SafeDumper):
    """Writes any value: an Enum by its value, and an object of another class as its text."""


YamlDumper.add_multi_representer(Enum, lambda dumper, each: dumper.represent_data(each.value))
YamlDumper.add_multi_representer(object, lambda dumper, each: dumper.represent_str(str(each)))


for kind in (YamlLoader, YamlDumper):
    # 1e-3, of which YAML 1.1 makes a text.
    kind.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


def dump_yaml(content: Any) -> str:
    """Return content as YAML, in its order; no object in it is an error."""
    how = {"default_flow_style": False, "allow_unicode": True, "sort_keys": False}
    return yaml.dump(content, Dumper=YamlDumper, **how)


def find_configs_folder() -> Path:
    """Return the folder of the included configs: in the package if installed, else beside it."""
    folder = PACKAGE / "configs"
    return folder if folder.is_dir() else PACKAGE.parent / "configs"


def find_config(name: str) -> str:
    """Return the path of the included config of this name; any other path with its home folder."""
    name = os.path.expanduser(name)
    path = os.fspath(find_configs_folder() / f"{name.removesuffix('.yaml')}.yaml")
    # Unlike Path.is_file, os.path.isfile accepts a long YAML text as a name.
    return path if os.path.isfile(path) and not os.path.isfile(name) else name


def find_host_name() -> str:
    return platform.node().partition(".")[0]


def flush_to_disk(path: Path) -> None:
    # Of a folder, this flushes the names in it.
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_pointer(path: Path) -> None:
    """Raise DataError for a pointer of Git LFS, which stands for a file that is not there."""
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise DataError(f"{path}: a Git LFS pointer in place of the file; run: git lfs pull")


def has_ending(path: Path, endings: Iterable[str]) -> bool:
    """Return True if a name ends with one of the endings, in small letters or capitals."""
    return path.name.lower().endswith(tuple(endings))


def has_mark(folder: Path, name: str) -> bool:
    """Return True for a folder of ours, by a file of OWN_MARKS; others have such files, too."""
    path = folder / name
    # Unlike Path.is_file, os.path.isfile is False where nothing may be read.
    if not os.path.isfile(path):
        return False
    with path.open("rb") as file:
        return OWN_MARKS[name] in file.read(MARK_WITHIN)


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_difference(path: Path, checksum: str) -> str:
    """Return a file's checksum and the expected "sha256:..." as text, or "" if they are equal."""
    algorithm, _, digest = checksum.partition(":")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    return "" if actual == digest else f"{algorithm} {actual}, not {digest}"


def verify_file(path: Path, checksum: str) -> None:
    """Raise a DataError unless a file can be read and has this checksum."""
    try:
        difference = find_difference(path, checksum)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); pass data.path") from error
    if difference:
        raise DataError(f"{path}: wrong file ({difference}); remove it, or pass data.path")


def hash_values(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the sha256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Raise StorageError with the path and the free space if a file cannot be written."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch.save turns an OSError into a RuntimeError.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        existing = next(folder for folder in path.absolute().parents if folder.is_dir())
        space = f"{shutil.disk_usage(existing).free:,} bytes free"
        raise StorageError(f"{path}: cannot be written ({cause.strerror}; {space})") from error


def find_write_problem(folder: Path) -> str | None:
    """Create a folder; return the reason if it cannot be written to, or None."""
    try:
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except StorageError as error:
        return str(error)
    return None


def expand_home(value: Any) -> Any:
    """Return a path, or a list of paths, with the home folder in place of ~ or ~user."""
    return [*map(expand_home, value)] if isinstance(value, list) else os.path.expanduser(value)


def require_local_path(key: str, path: str | Path, instead: str = "") -> Path:
    """Return a path; ValueError for a URL, which would become a folder of that name, and for an
    empty text, which would be the current folder."""
    require_path(key, path)
    expected = f"a path on this machine, not a URL{instead}"
    require(not URL.match(os.fspath(path)), key, path, expected)
    return Path(path)


def check_folder_writable(key: str, folder: str | Path, instead: str = "") -> None:
    """Create a folder before the work whose results it will contain, or raise StorageError."""
    if problem := find_write_problem(require_local_path(key, folder, instead)):
        raise StorageError(f"{key}: {problem}")


def check_file_writable(key: str, path: str | Path | None) -> None:
    """Raise StorageError if a file, unless it is None, could not be written after the work."""
    path = require_local_path(key, os.devnull if path is None else path)
    if path.is_dir():
        raise StorageError(f"{key}: invalid {path}, a folder; expected a file")
    # /dev/stdout may be writable although /dev is not.
    if path.exists() and not path.is_file():
        return
    if not path.parent.is_dir():
        raise StorageError(f"{key}: {path}: there is no folder {path.parent}")
    check_folder_writable(key, path.parent)


def cache_result(
    key: Any, paths: Iterable[Path], data_dir: Path, compute: Callable[[], Any]
) -> Any:
    """Return `compute()` of some files, cached in `data_dir` until they are changed or copied."""
    status = [(os.path.abspath(path), path.stat()) for path in paths]
    # Programs that copy or change a file can set its mtime, but not inode and ctime.
    stamps = [(p, s.st_size, s.st_mtime_ns, s.st_ino, s.st_ctime_ns) for p, s in status]
    cache = data_dir / "prepared" / "cache" / hash_values([key, stamps])
    if cache.is_file():
        with suppress(DataError):
            saved = read_json(cache, {"checksum": str})
            if saved["checksum"] == hash_values(saved.get("result")):
                return saved.get("result")
        print_notice(f"warning: {cache}: damaged; computed again")
    result = compute()
    if all(time.time_ns() - changed > MIN_AGE for *_, changed in stamps):
        # The folder may be read-only; then every call computes.
        with suppress(StorageError):
            write_json({"result": result, "checksum": hash_values(result)}, cache)
    return result
