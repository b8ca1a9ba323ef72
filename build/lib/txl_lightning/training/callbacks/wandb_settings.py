"""Checks of W&B's settings, by option or environment variable, before a run starts."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import format_line, require, shorten

FIELDS = {"id": "run_id", "name": "run_name", "tags": "run_tags", "group": "run_group"}
"""Names of options in W&B's own settings, where they differ."""
SECRET = "KEY"  # in the name of a variable whose value is not printed


def check_wandb_settings(options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option or a variable that W&B would refuse when the run starts."""
    # Slow to import, and needed only by runs with this logger.
    import wandb

    for variable, value in os.environ.items():
        if variable.startswith("WANDB_"):
            with explain_refusal(variable, value):
                wandb.Settings().update_from_env_vars({variable: value})
    for name, value in options.items():
        field = FIELDS.get(name, name)
        if field in wandb.Settings.model_fields:
            with explain_refusal(f"trainer.logger.{name}", value):
                setattr(wandb.Settings(), field, value)
    # W&B asks its server about an entity, and would go on offline.
    entities = {"WANDB_ENTITY": os.environ.get("WANDB_ENTITY")}
    entities["trainer.logger.entity"] = options.get("entity")
    for key, entity in entities.items():
        require("/" not in (entity or ""), key, entity, "a user or a team, without a slash")


@contextmanager
def explain_refusal(key: str, value: object) -> Iterator[None]:
    import wandb

    try:
        yield
    # Those of pydantic are ValueErrors.
    except (ValueError, wandb.errors.UsageError) as error:
        reason = error.errors()[0]["msg"] if hasattr(error, "errors") else str(error)
        reason = format_line(reason.removeprefix("Value error, "))
        shown = "value" if SECRET in key else shorten(value)
        raise ValueError(f"{key}: invalid {shown}; {reason}") from error
