"""Run W&B sweep files: proposals and pruning by Optuna, one process per trial."""
