"""RunLogger: write metrics.csv, and continue it in a resumed run."""

import math
import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from ..files import explain_write_errors, flush_to_disk
from ..tables import read_log, write_csv
from .folder import TOKENS


class RunLogger(CSVLogger):
    """A CSVLogger that appends to the metrics.csv of a run that is resumed."""

    @property
    @rank_zero_experiment
    def experiment(self) -> "AppendingWriter":
        # Private: at the end Lightning saves the content of `_experiment`.
        if self._experiment is None:
            self._experiment = AppendingWriter(self.log_dir)
        return self._experiment

    def _get_next_version(self) -> int:
        # Private: of two runs that start at once, one makes the folder, the other the next one.
        number = super()._get_next_version()
        while rank_zero_only.rank == 0:
            try:
                os.makedirs(Path(self.root_dir, f"version_{number}"))
                break
            except FileExistsError:
                number += 1
        return number

    @rank_zero_only
    def drop_rows(self, n_step: int, validation_due: bool, tokens: float = math.inf) -> None:
        """Drop the rows that a run resumed after `n_step` steps, counted from 0, and so many tokens
        logs again: also the last validation's if it is still due."""
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
        path = Path(self.experiment.metrics_file_path)
        if path.is_file():
            flush_to_disk(path)


class AppendingWriter(ExperimentWriter):
    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        self.metrics_keys = list(next(iter(self.read_rows()), {}))

    def read_rows(self) -> list[dict[str, str]]:
        return list(read_log(Path(self.metrics_file_path)))

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        write_csv(rows, self.metrics_keys, Path(self.metrics_file_path))

    def save(self) -> None:
        path = Path(self.metrics_file_path)
        with explain_write_errors(path):
            # A user may have removed the folder.
            path.parent.mkdir(parents=True, exist_ok=True)
            super().save()

    def _check_log_dir_exists(self) -> None:
        # Private: Lightning's deletes an existing metrics.csv.
        pass

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        # Private: Lightning's overwrites the file in place, and a kill would truncate it.
        self.write_rows(self.read_rows())
