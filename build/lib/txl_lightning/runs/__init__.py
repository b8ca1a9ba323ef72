"""The folder of a run: its layout, its table of metrics, and lists of runs."""
