"""Callbacks of runs; ../cli.py puts them in order."""
