"""What sums are counted in."""

import torch


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on Apple's devices, which have nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64
