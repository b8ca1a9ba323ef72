"""The device that a command's model runs on."""

from typing import Literal

import torch

from ..errors import require

Device = Literal["cpu", "cuda"] | None


def pick_device(device: Device) -> str:
    """Return the device asked for, or the best one.

    Raises:
        ValueError: torch does not find it.
    """
    has_gpu = torch.cuda.is_available()
    require(device != "cuda" or has_gpu, "device", device, "cpu, because torch finds no GPU")
    return device or ("cuda" if has_gpu else "cpu")
