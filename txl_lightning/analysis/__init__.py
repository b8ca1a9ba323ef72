"""What a model does with its memory: useful context, attention distance, loss by position."""
