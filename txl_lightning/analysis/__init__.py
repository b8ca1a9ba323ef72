"""Analyses of a model's memory: useful context, attention distance, loss by position, speed."""
