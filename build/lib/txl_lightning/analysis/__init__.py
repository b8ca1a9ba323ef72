"""Analyses of a model's memory: effective context, attention distance, loss by position."""
