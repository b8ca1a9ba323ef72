"""Measurements: `python -m experiments...` imports this file before torch."""

from txl_lightning.process import limit_spinning

limit_spinning()
