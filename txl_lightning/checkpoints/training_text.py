"""The text that a checkpoint was trained on, found again."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from ..data.config import DataConfig
from ..data.store import Store
from ..data.tasks import TaskStore
from ..errors import DataError
from .runs import read_checkpoint

OTHERWISE = "give a text with --path"


def load_training_text(
    ckpt_path: str | Path, data_dir: str | None = None
) -> tuple[str, Store | TaskStore]:
    """The name of a run's text and its store, as the config in the run's folder says.

    Args:
        ckpt_path: RUN/checkpoints/NAME.ckpt.
        data_dir: where data lives; left out, where the run had it.

    Raises:
        DataError: nothing says which text it was, or it is another one by now.
    """
    state = read_checkpoint(ckpt_path).get("CorpusDataModule")
    path = Path(ckpt_path).absolute().parents[1] / "config.yaml"
    if state is None or not path.is_file():
        raise DataError(
            f"ckpt_path: {ckpt_path}: no {path} says what it was trained on; {OTHERWISE}"
        )
    config = text_config(yaml.safe_load(path.read_text(encoding="utf-8")))
    store = (replace(config, data_dir=data_dir) if data_dir else config).open()
    if store.fingerprint != state["fingerprint"]:
        changed = f"the checkpoint's is {state['fingerprint']}, this text's {store.fingerprint}"
        raise DataError(f"data ({config.name}): {changed}; {OTHERWISE}")
    return config.name, store


def text_config(run: dict[str, Any]) -> DataConfig:
    """Which text a run's config names, among all that it says of data."""
    names = {field.name for field in fields(DataConfig)}
    given = run.get("data") or {}
    return DataConfig(**{name: given[name] for name in given.keys() & names})
