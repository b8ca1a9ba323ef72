"""Find runs in folders, and load what their folders say of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from ..errors import DataError, flatten_settings, require
from ..files import host_name, is_running, load_yaml, read_json
from .folder import CONFIG, METRICS, STATE
from .metrics_table import RunMetrics, read_metrics

STATE_SHAPE = {"state": str, "step": int, "parameters": int, "host": str, "pid": int}


@dataclass(frozen=True)
class Run:
    """The content of a run's folder: settings by dotted key, metrics, and what run.json has."""

    folder: Path
    settings: dict[str, Any]
    metrics: RunMetrics
    about: dict[str, Any]

    @property
    def state(self) -> str:
        about = self.about or {"state": "", "host": ""}
        # Nobody writes that a process was killed.
        is_killed = about["state"] == "training" and about["host"] == host_name()
        return "killed" if is_killed and not is_running(about["pid"]) else about["state"]

    @property
    def facts(self) -> dict[str, str]:
        """Return in words what runs are compared by; what one lacks is left out."""
        steps = [self.about.get("step", 0), *(row["step"] for row in self.metrics.rows[-1:])]
        facts = {"state": self.state, "steps": f"{max(steps):,.0f}"}
        if self.about:
            facts["parameters"] = f"{self.about['parameters']:,}"
        return facts | self.metrics.headlines


def find_runs(root: str, key: str) -> list[Path]:
    """Return the folders of runs in a folder, or itself, the one written last at the end."""
    configs = Path(root).rglob(CONFIG)
    folders = [path.parent for path in configs if written_at(path.parent)]
    require(bool(folders), key, root, "a folder with runs, which fit writes")
    return sorted(folders, key=lambda folder: (written_at(folder), folder))


def written_at(folder: Path) -> float:
    """Return when a run was written to, in seconds since 1970; 0 for a folder of something else."""
    files = [folder / name for name in (STATE, METRICS)]
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def load_run(folder: Path) -> Run:
    config, state = folder / CONFIG, folder / STATE
    try:
        settings = flatten_settings(load_yaml(config.read_bytes()))
    except (yaml.YAMLError, AttributeError, ValueError) as error:
        raise DataError(f"{config}: damaged, or not what fit wrote") from error
    # Runs of earlier releases have none.
    about = read_json(state, STATE_SHAPE) if state.is_file() else {}
    return Run(folder, settings, read_metrics(folder), about)


def shorten_paths(paths: Sequence[str | Path]) -> list[str]:
    """Return what tells the paths apart, without the folders that all of them begin or end with."""
    parts = [Path(str(path).removesuffix(".ckpt")).absolute().parts for path in paths]
    start = count_shared(parts)
    end = count_shared([each[start:][::-1] for each in parts])
    return ["/".join(each[start : len(each) - end]) or each[-1] for each in parts]


def count_shared(parts: Iterable[tuple[str, ...]]) -> int:
    return len(list(takewhile(lambda at: len(set(at)) == 1, zip(*parts, strict=False))))
