"""Lightning's EarlyStopping in a resumed run: the patience given now counts."""

from typing import Any

from lightning.pytorch.callbacks import EarlyStopping


def keep_patience(callbacks: list[EarlyStopping], checkpoint: dict[str, Any]) -> None:
    """Replace the patience in a checkpoint, which Lightning would restore, by that given now."""
    for each in callbacks:
        if state := checkpoint.get("callbacks", {}).get(each.state_key):
            state["patience"] = each.patience


def has_stopped(callback: EarlyStopping) -> bool:
    """Return True if a callback has ended the run, and would with the patience given now."""
    reason = callback.stopping_reason
    was_patience = reason.name == "PATIENCE_EXHAUSTED"
    return bool(reason.value) and not (was_patience and callback.wait_count < callback.patience)
