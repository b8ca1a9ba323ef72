"""Measurements: `python -m experiments...` imports this file before torch."""

from contextlib import suppress

# An older tree of a comparison (--before) has no such module.
with suppress(ModuleNotFoundError):
    from txl_lightning.threads import limit_spinning

    limit_spinning()
