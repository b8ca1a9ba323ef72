"""Precisions that a device has, or is fast in."""

import torch


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """Return float64 for sums, or float32 on Apple's devices, which lack float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def has_bfloat16_units(device: torch.device) -> bool:
    """Return True if bfloat16 matrix products are several times as fast on the device."""
    return device.type == "cuda" or torch.cpu.get_capabilities().get("amx_bf16", False)
