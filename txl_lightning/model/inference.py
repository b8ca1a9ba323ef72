"""How evaluation and generation call a network; packed weights.

B rows   L segment   D width
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import require
from .cache import KeyValueCache
from .config import is_transformer_xl, require_transformer_xl
from .contract import Network, PlainReader
from .memory import Memory
from .parts import PackedLinear, is_onednn_faster
from .transformer_xl import TransformerXL

Weights = Literal["float32", "bf16"]


class CachedReader:
    """A network with constant weights: its memory has keys and values, where these are constant.

    For `torch.inference_mode` or `no_grad`, in eval mode.
    """

    def __init__(self, net: TransformerXL) -> None:
        expected = "a TransformerXL with its own forward and loss; make_reader takes any network"
        require(net.reads_states, "net", type(net).__name__, expected)
        self.net = net
        self.config = net.config
        self.empty_memory = net.empty_cache

    @property
    def head(self) -> nn.Module:
        return self.net.head

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: Memory | KeyValueCache | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, Memory | KeyValueCache]:
        """Return h^N_BLD and the memory for the next segment, as the network does."""
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        return self.net.hidden(tokens_BL, memory, doc_pos_BL, n_reread)

    # Both read `hidden` and `head` only.
    __call__ = TransformerXL.forward
    loss = TransformerXL.loss


Reader = CachedReader | PlainReader | TransformerXL


def holds_keys(memory: object) -> bool:
    """Return True if a memory has keys and values, which a layer has of its mem_len last tokens."""
    return isinstance(memory, KeyValueCache)


def make_reader(net: Network, uses_cache: bool = True) -> Reader:
    """Return a network as evaluation calls it, with cached keys and values if it has them."""
    if not (isinstance(net, TransformerXL) and net.reads_states):
        return PlainReader(net)
    return CachedReader(net) if uses_cache else net


def pack_weights(net: TransformerXL, weights: Weights) -> TransformerXL:
    """Return the network after packing its layers' weights for a CPU, for inference only.

    With bf16, the products of its layers, and cached keys and values, are in bfloat16; sums of
    layers, norms, embeddings and softmax stay in float32. A packed network can no longer be
    trained, saved or moved to another device.

    Raises:
        ValueError: the device does not support them.
    """
    require(weights in ("float32", "bf16"), "weights", weights, "one of float32, bf16")
    if weights == "float32" and not is_transformer_xl(net):
        return net
    require_transformer_xl(net, "weights", weights)
    is_cpu = net.device.type == "cpu"
    is_float32 = is_cpu and net.compute_dtype == torch.float32
    if weights == "float32" and not (is_float32 and is_onednn_faster()):
        return net
    is_supported = is_cpu and torch.backends.mkldnn.is_available()
    if weights == "bf16":
        # Private: no public function tells.
        is_supported = is_supported and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    require(is_supported, "weights", weights, f"float32 on this {net.device.type}")
    require(is_float32, "weights", weights, "a network in float32")
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    for name, module in list(net.layers.named_modules()):
        if isinstance(module, nn.Linear):
            net.layers.set_submodule(name, PackedLinear(module, dtype))
    return net


def find_device(net: nn.Module) -> torch.device:
    return next(net.parameters()).device
