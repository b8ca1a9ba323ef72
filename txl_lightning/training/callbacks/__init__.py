"""Callbacks of runs; ../trainer_parts.py puts them in order."""
