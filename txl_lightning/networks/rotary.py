"""The frequencies of rotary positions, which no change of a network's precision may round."""

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn

FREQUENCIES = "inv_freq"
"""End of the names of buffers with frequencies, in models of transformers."""
FAR = 1 << 17
"""Position at which large angles in float32 are multiples of 1/128 radian, and of more later."""


class KeepFrequencies(nn.Module):
    """A network whose frequencies keep their precision, as in transformers' from_pretrained.

    The angle of a token is its position times a frequency. In bfloat16, it is wrong by about a
    radian at a distance of 1,000 tokens.
    """

    def has_frequencies(self) -> bool:
        return any(name.endswith(FREQUENCIES) for name, _ in self.named_buffers())

    # Private: all changes of precision pass here, also those of a module that has this one.
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        frequencies = {
            id(each) for name, each in self.named_buffers() if name.endswith(FREQUENCIES)
        }

        def change(tensor: Tensor) -> Tensor:
            changed = fn(tensor)
            is_rounded = id(tensor) in frequencies and changed.dtype != tensor.dtype
            return tensor.to(changed.device) if is_rounded else changed

        return super()._apply(change, recurse)
