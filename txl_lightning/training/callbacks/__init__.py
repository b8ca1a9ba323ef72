"""What a person sees of a run: history.py and looks.py note it; the others show it."""
