"""Find the folders of runs, and load their settings, metrics and state."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from ..errors import DataError, flatten_settings, format_line, print_notice, require
from ..files import find_host_name, load_yaml, read_json, require_local_path
from .folder import CONFIG, METRICS, STATE, is_running
from .metrics_table import RunMetrics, read_metrics

STATE_SHAPE = {"state": str, "step": int, "parameters": int, "host": str, "pid": int}
STATE_SHAPE |= {"tokens": int, "seconds": float}


@dataclass(frozen=True)
class Run:
    """The content of a run's folder: settings by dotted key, metrics, and run.json."""

    folder: Path
    settings: dict[str, Any]
    metrics: RunMetrics
    status: dict[str, Any]  # of run.json

    @property
    def state(self) -> str:
        status = self.status
        # A killed process leaves its last state.
        is_local = status["state"] == "training" and status["host"] == find_host_name()
        return "killed" if is_local and not is_running(status["pid"]) else status["state"]

    @property
    def facts(self) -> dict[str, str]:
        """The values by which runs are compared, as text by label; missing ones are left out."""
        steps = [self.status["step"], *(row["step"] for row in self.metrics.rows[-1:])]
        facts = {"state": self.state, "steps": f"{max(steps):,.0f}"}
        facts["parameters"] = f"{self.status['parameters']:,}"
        return facts | self.metrics.headlines


def find_runs(root: str, key: str) -> list[Path]:
    """Return the folders of runs in a folder, or itself, the one written last at the end."""
    folders = [path.parent for path in require_local_path(key, root).rglob(STATE) if path.is_file()]
    require(bool(folders), key, root, "a folder with runs, which fit writes")
    return sorted(folders, key=lambda folder: (find_write_time(folder), folder))


def find_write_time(folder: Path) -> float:
    """Return when a run was last written to, in seconds since 1970."""
    files = [folder / name for name in (STATE, METRICS)]
    return max(file.stat().st_mtime for file in files if file.is_file())


def load_run(folder: Path) -> Run:
    config = folder / CONFIG
    try:
        settings = flatten_settings(load_yaml(config.read_bytes()))
    except (yaml.YAMLError, AttributeError, ValueError, RecursionError) as error:
        raise DataError(f"{config}: damaged, or not what fit wrote") from error
    status = read_json(folder / STATE, STATE_SHAPE)
    metrics = read_metrics(folder, (), status["tokens"], status["seconds"])
    return Run(folder, settings, metrics, status)


def load_runs(folders: Iterable[Path]) -> list[Run]:
    """Load the runs of a list; a folder that is none is named, and left out unless all are."""
    runs = []
    problems = []
    for folder in folders:
        try:
            runs.append(load_run(folder))
        except DataError as error:
            problems.append(error)
        except OSError as error:
            problems.append(DataError(f"{error.filename}: cannot be read ({error.strerror})"))
    if problems and not runs:
        raise problems[0]
    for problem in problems:
        print_notice(f"warning: {format_line(str(problem))}; left out")
    return runs


def shorten_paths(paths: Sequence[str | Path]) -> list[str]:
    """Return the paths without the folders that all of them begin or end with.

    Different paths have different names, of which none is empty.
    """
    names: list[str] = []
    for ending in (".ckpt", ""):
        parts = [Path(str(path).removesuffix(ending)).absolute().parts for path in paths]
        start = min(count_shared(parts), min(map(len, parts), default=1) - 1)
        for end in (count_shared([each[start:][::-1] for each in parts]), 0):
            names = ["/".join(each[start : len(each) - end]) or each[-1] for each in parts]
            if len({*names}) == len({*paths}):
                return names
    return names


def count_shared(parts: Iterable[tuple[str, ...]]) -> int:
    return len(list(takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))))
