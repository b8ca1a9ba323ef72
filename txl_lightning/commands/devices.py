"""Where a verb's model runs."""

from typing import Literal

import torch

from ..errors import require

Device = Literal["cpu", "cuda"] | None


def there_is(device: Device) -> str:
    """The device that is asked for, or the best one.

    Raises:
        ValueError: it is not there.
    """
    gpu = torch.cuda.is_available()
    require(device != "cuda" or gpu, "device", device, "cpu, because torch finds no GPU")
    return device or ("cuda" if gpu else "cpu")
