"""How evaluation and generation call a network; packed weights.

B rows   L segment   D width
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import require
from .adaptation import (
    Adaptation,
    AdaptedMemory,
    Piece,
    is_trainable,
    restore_weights,
    take_step,
)
from .adaptive import nats
from .cache import KeyValueCache
from .config import EvalLengths, is_transformer_xl, require_transformer_xl
from .contract import AnyMemory, Network, has_states
from .parts import PackedLinear, is_onednn_faster
from .state_cache import StateCache
from .transformer_xl import TransformerXL

Weights = Literal["float32", "bf16"]


class Reader:
    """A network as evaluation and generation call it; it may adapt to what it reads.

    Its weights are constant, so that its memory has keys and values where these are constant, too.
    `hidden` reads a segment, `score` scores it, and `loss` scores it and then learns from it if
    `adaptation` has a rate: only the weights of a copy change. Arguments are as in a network.

    Args:
        net: a network in eval mode.
        adaptation: a continuous cache, steps after each segment, or both; by default neither.
        keeps_keys: False for a memory of states, where weights change, or where shapes must not.

    Raises:
        ValueError: an adaptation that the network cannot have.
    """

    def __init__(
        self,
        net: Network,
        adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
        keeps_keys: bool = True,
    ) -> None:
        self.trained = net
        self.config = net.config
        self.use = adaptation.fill()
        self.has_states = has_states(net)
        expected = f"0, as {type(net).__name__} lacks its method hidden, or its head"
        is_possible = self.has_states or not self.use.cache_len
        require(is_possible, "cache_len", self.use.cache_len, expected)
        is_possible = not self.use.rate or is_trainable(net)
        require(is_possible, "rate", self.use.rate, "0, or whole weights in float32, not packed")
        self.keeps_keys = keeps_keys and not self.use.rate and isinstance(net, TransformerXL)
        self.net = net
        if self.use.rate:
            # Tensors made under inference_mode take part in no gradient.
            with torch.inference_mode(False):
                self.net = copy.deepcopy(net).eval().requires_grad_(True)

    @property
    def head(self) -> nn.Module:
        """The softmax of the states that `hidden` returns."""
        if isinstance(self.net, TransformerXL) and self.has_states:
            return self.net.head
        return PlainSoftmax(self.net.head if self.has_states else nn.Identity())

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> AnyMemory:
        """Return the memory before any token: the network's, perhaps with a continuous cache."""
        use = self.use
        is_possible = not use.rate or batch_size == 1
        require(is_possible, "rate", use.rate, f"0, or a single row, not {batch_size}")
        make = self.net.empty_cache if self.keeps_keys else self.net.empty_memory
        with torch.inference_mode(False):
            memory = make(batch_size, lengths)
        if not use.cache_len:
            return memory
        return AdaptedMemory(memory, StateCache(use.cache_len, use.cache_theta, use.cache_weight))

    def __call__(
        self, tokens_BL: Tensor, memory: AnyMemory | None = None, *place: Any
    ) -> tuple[Tensor, AnyMemory]:
        """Return logits_BLV of the network alone, and the next memory."""
        h_BLD, memory = self.hidden(tokens_BL, memory, *place)
        return self.head(h_BLD), memory

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: AnyMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        """Return the states h_BLD, or logits of a network that has none, and the next memory."""
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        read = self.net.hidden if self.has_states else self.net
        if not isinstance(memory, AdaptedMemory):
            return read(tokens_BL, memory, doc_pos_BL, n_reread)
        h_BLD, inner = read(tokens_BL, memory.memory, doc_pos_BL, n_reread)
        new = slice(memory.n_reread, None)
        cache = memory.cache.append(h_BLD[:, new], tokens_BL[:, new])
        return h_BLD, AdaptedMemory(inner, cache, n_reread)

    def score(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AnyMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        """Return nats_BL of the targets, and the next memory."""
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        segment = Piece(tokens_BL, targets_BL, doc_pos_BL)
        nats_BL, _, memory = self._score(segment, memory, n_reread)
        return nats_BL, memory

    def loss(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AnyMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        """Return the same as `score`, and learn from the segment after it."""
        if not self.use.rate:
            return self.score(tokens_BL, targets_BL, memory, doc_pos_BL, n_reread)
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        tensors = tokens_BL, targets_BL, doc_pos_BL
        with torch.inference_mode(False), torch.enable_grad():
            # Tensors made under inference_mode take part in no gradient; copies do.
            segment = Piece(*(each if each is None else each.clone() for each in tensors))
            return self._learn(segment, memory, n_reread)

    def _learn(self, segment: Piece, memory: AnyMemory, n_reread: int) -> tuple[Tensor, AnyMemory]:
        parts = []
        for piece in segment.cut():
            if piece.starts:
                restore_weights(self.net, self.trained)
            memory = set_reread(memory, piece.n_context)
            n_last = min(n_reread, piece.tokens_BL.size(1))
            nats_BL, network_BL, memory = self._score(piece, memory, n_last)
            parts.append(nats_BL)
        # Documents before the last one are over: a step for them would have no effect.
        begin = [0, *piece.starts][-1]
        is_scored_L = piece.targets_BL[0, begin:].to(network_BL.device) >= 0
        take_step(self.net, self.trained, self.use, network_BL[0, begin:][is_scored_L])
        return torch.cat(parts, dim=1), set_reread(memory, n_reread)

    def _score(
        self, piece: Piece, memory: AnyMemory, n_reread: int
    ) -> tuple[Tensor, Tensor, AnyMemory]:
        """Return nats_BL of the mixture; nats_BL of the network, with gradient; and the memory."""
        tokens_BL, targets_BL, doc_pos_BL = piece
        if not isinstance(memory, AdaptedMemory):
            nats_BL, memory = self.net.loss(tokens_BL, targets_BL, memory, doc_pos_BL, n_reread)
            return nats_BL.detach(), nats_BL, memory
        h_BLD, memory = self.hidden(tokens_BL, memory, doc_pos_BL, n_reread)
        network_BL = self.head.nats(h_BLD[:, piece.n_context :], targets_BL)
        nats_BL = memory.cache.mix_nats(network_BL.detach(), targets_BL, doc_pos_BL)
        return nats_BL, network_BL, memory


def set_reread(memory: AnyMemory, n_reread: int) -> AnyMemory:
    """Return a memory whose continuous cache has read the first tokens of the next segment."""
    return replace(memory, n_reread=n_reread) if isinstance(memory, AdaptedMemory) else memory


class PlainSoftmax(nn.Sequential):
    """The softmax of the logits of any head."""

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return -log p of each target, nats_BL; targets may be on the host."""
        target_Y = targets_BL.flatten().to(h_BLD.device, non_blocking=True)
        return nats(self, h_BLD.flatten(0, -2), target_Y).view(targets_BL.shape)


def holds_keys(memory: object) -> bool:
    """Return True if a memory has keys and values, which a layer has of its mem_len last tokens."""
    return isinstance(memory, KeyValueCache)


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
