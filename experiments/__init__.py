"""Measurements: `python -m experiments...` imports this file before torch."""

from txl_lightning.threads import limit_spinning

limit_spinning()
