"""Many runs of one sweep file of W&B's: proposals and pruning by Optuna, one process a trial."""
