"""A cache of transformers 5 that is made of a memory, and overwrites none of its tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, PreTrainedConfig
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)

from ..errors import require

KINDS = {
    "conv": LinearAttentionLayer,
    "dummy": DummyLayer,
    "full_attention": DynamicLayer,
    "hybrid": LinearAttentionAndFullAttentionLayer,
    "linear_attention": LinearAttentionLayer,
    # All keys, and a mask for the window: so each layer has the keys of the same tokens.
    "sliding_attention": DynamicLayer,
}
"""Kind of a layer of the cache, by the type of a layer of the model."""
STATES = ("conv_states", "recurrent_states")


class CacheLayout:
    """The layers of the cache of a model.

    A layer that has neither keys and values nor states of `STATES` is a ValueError.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        self.types, self.options = get_layer_types_and_kwargs(config)
        for each in self.types:
            require(each in KINDS, "layer_types", each, f"of {', '.join(KINDS)}")
        kinds = [KINDS[each] for each in self.types]
        self.has_keys = any(issubclass(kind, DynamicLayer) for kind in kinds)
        self.has_states = any(issubclass(kind, LinearAttentionLayer) for kind in kinds)

    def list_windows(self) -> dict[str, int | None]:
        """Return, for each type of attention, how many tokens a query attends to; None: all."""
        pairs = zip(self.types, self.options, strict=True)
        windows = {each: options.get("sliding_window") for each, options in pairs}
        keyed = [each for each in windows if issubclass(KINDS[each], DynamicLayer)]
        return {each: windows[each] for each in keyed}

    def make_cache(self, cached: dict[str, Tensor]) -> ValueCache:
        """Return a cache with tensors that `ValueCache.list_tensors` has named."""
        pairs = zip(self.types, self.options, strict=True)
        layers = [KINDS[each](**options) for each, options in pairs]
        for name, tensor in cached.items():
            number, *place = name.split(".")
            fill_layer(layers[int(number)], tensor, *place)
        return ValueCache(layers)


class ValueCache(Cache):
    """A cache whose updates are new tensors. transformers' own overwrite states in place, which a
    memory must not be, and after which gradients fail."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__(layers=layers)

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Return the new inputs of a convolution after those before them; keep the last ones."""
        layer = self.layers[layer_idx]
        n_tap = conv_kernel_size or conv_states.size(-1)
        if layer.has_previous_state[state_idx]:
            n_tap = layer.conv_states[state_idx].size(-1)
            conv_states = torch.cat([layer.conv_states[state_idx], conv_states], dim=-1)
        conv_states = pad(conv_states, (max(n_tap - conv_states.size(-1), 0), 0))
        layer.conv_states[state_idx] = conv_states[..., -n_tap:]
        layer.has_previous_state[state_idx] = True
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        self.layers[layer_idx].recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    def list_tensors(self) -> dict[str, Tensor]:
        """Return all tensors: LAYER.keys, LAYER.values, LAYER.conv_states.N, ..."""
        named = {}
        for number, layer in enumerate(self.layers):
            for field in ("keys", "values"):
                named[f"{number}.{field}"] = getattr(layer, field, None)
            for field in STATES:
                states = getattr(layer, field, {})
                named |= {f"{number}.{field}.{index}": states[index] for index in states}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def fill_layer(layer: Any, tensor: Tensor, field: str, index: str = "") -> None:
    """Set keys, values or a state of a layer of a cache."""
    if field not in STATES:
        setattr(layer, field, tensor)
        layer.is_initialized = True
        return
    # Where a layer reads a single token, it may overwrite its states.
    getattr(layer, field)[int(index)] = tensor.clone()
    layer.has_previous_state[int(index)] = True
