"""Many runs of one file of W&B's: which to make, which to end early, and what they have shown."""
