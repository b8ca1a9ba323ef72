"""What the file of a picture shows."""

import re
from pathlib import Path

import numpy as np


def has_curves(path: str | Path) -> bool:
    """Return True if something has a colour: axes without data are black and gray on white."""
    if Path(path).suffix == ".svg":
        colours = re.findall(r"(?:stroke|fill): #(\w\w)(\w\w)(\w\w)\b", Path(path).read_text())
        values = np.array([[int(part, 16) / 255 for part in colour] for colour in colours])
        return bool((np.ptp(values, axis=-1) > 0.3).any())
    # Slow to import.
    from matplotlib.image import imread

    return bool((np.ptp(imread(path)[..., :3], axis=-1) > 0.3).sum() > 100)
