"""RunLogger: write metrics.csv, and continue it in a resumed run."""

import csv
import math
from pathlib import Path
from typing import Any

from lightning.pytorch.core.saving import save_hparams_to_yaml
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from ..files import explain_write_errors, flush_to_disk
from ..tables import read_log, write_csv
from .folder import METRICS, TOKENS, claim_version

HPARAMS = "hparams.yaml"


class RunLogger(CSVLogger):
    """A CSVLogger that appends to the metrics.csv of a run that is resumed."""

    def __init__(self, save_dir: Path | str, name: str = "", version: str | None = None) -> None:
        super().__init__(save_dir, name=name, version=version)
        self.run_name = version
        self.writer: RowWriter | None = None

    @property
    def version(self) -> str:
        """The name of the run's folder, which is made when it is first asked for."""
        if self.run_name is None:
            self.run_name = claim_version(Path(self.root_dir), rank_zero_only.rank == 0)
        return self.run_name

    @property
    @rank_zero_experiment
    def experiment(self) -> "RowWriter":
        if self.writer is None:
            self.writer = RowWriter(Path(self.log_dir))
        return self.writer

    @rank_zero_only
    def drop_rows(self, n_step: int, validation_due: bool, tokens: float = math.inf) -> None:
        """Drop the rows that a run resumed after `n_step` steps and so many tokens logs again.

        Steps are counted from 0. The last validation's row is dropped if it is still due.
        """
        kept = []
        rows = self.experiment.read_rows()
        for row in rows:
            done_again = validation_due and any(row[key] for key in row if key.startswith("val/"))
            # Of a validation while the gradients of the next step accumulated; in float32.
            is_later = float(row.get(TOKENS) or 0) > tokens * (1 + 1e-6)
            if int(row["step"]) < n_step - done_again and not is_later:
                kept.append(row)
        if rows:
            self.experiment.write_rows(kept)

    @rank_zero_only
    def flush_to_disk(self) -> None:
        """Flush the rows to disk before the checkpoint of their steps is written."""
        if self.experiment.path.is_file():
            flush_to_disk(self.experiment.path)


class RowWriter:
    """Append rows to a metrics.csv; new columns rewrite the file, so that a kill loses no row."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS
        self.metrics: list[dict[str, Any]] = []
        """Rows that are not written yet; Lightning counts them."""
        self.hparams: dict[str, Any] = {}
        self.columns = list(next(iter(self.read_rows()), {}))
        folder.mkdir(parents=True, exist_ok=True)

    def log_hparams(self, params: dict[str, Any]) -> None:
        """Write hparams.yaml, as Lightning does."""
        self.hparams |= params
        save_hparams_to_yaml(self.path.with_name(HPARAMS), self.hparams)

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        """Add a row, which `save` writes."""
        values = {k: v.item() if isinstance(v, Tensor) else v for k, v in metrics.items()}
        self.metrics.append(values | {"step": step})

    def save(self) -> None:
        """Write the rows that were added; StorageError if that fails."""
        if not self.metrics:
            return
        with explain_write_errors(self.path):
            # A user may have removed the folder.
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.add_columns({name for row in self.metrics for name in row})
            with self.path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self.columns).writerows(self.metrics)
        self.metrics = []

    def add_columns(self, names: set[str]) -> None:
        """Write the header of a new file, and a file again that lacks a column."""
        if not names <= {*self.columns} or not self.path.is_file():
            self.columns = sorted(names | {*self.columns})
            self.write_rows(self.read_rows())

    def read_rows(self) -> list[dict[str, str]]:
        return list(read_log(self.path))

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        write_csv(rows, self.columns, self.path)
