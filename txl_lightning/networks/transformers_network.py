"""A causal language model of transformers 5 with the contract of a network.

B rows   L tokens in the segment   M tokens in memory   S = M + L   V vocabulary
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    PreTrainedConfig,
    PreTrainedModel,
)

from ..errors import print_notice, require, suggest_key
from ..model.adaptive import as_indices
from ..model.config import EvalLengths, NetworkConfig
from ..model.nats import nats_of_logits
from .cache_memory import CacheMemory
from .rotary import FAR, KeepFrequencies
from .stateful import LONG_AGO
from .value_cache import CacheLayout, ValueCache

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
CACHES = ("past_key_values", "cache_params")
N_UNCHECKED = 1 << 13
"""Tokens of a row after which its position is looked at, which a GPU waits for."""
VARIABLE_ROTATIONS = ("dynamic", "longrope")
"""Rotary positions whose frequencies depend on how much was read."""


class HuggingFaceNetwork(KeepFrequencies):
    """A model that is read with masks and positions of ours, and whose cache is the memory.

    The position of a token is counted from the start of its document, or of reading. Only
    distances count, so that a memory may be cut, and may hold fewer tokens of some rows.

    Raises:
        ValueError: the model takes no cache, or no positions, or has layers with another cache.
    """

    can_be_sharded = False
    """fsdp2 gathers the weights of `layers`, which models of transformers keep elsewhere."""

    def __init__(self, config: NetworkConfig, model: PreTrainedModel) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.layout = CacheLayout(model.config)
        self.n_unchecked = 0
        self.warns_of_far = self.has_frequencies()
        accepted = inspect.signature(model.forward).parameters
        kind = model.config.model_type
        self.cache_name = find_cache_name(accepted)
        expected = f"a family whose {' or '.join(CACHES)} is transformers' Cache"
        require(self.cache_name, "model_type", kind, expected)
        can_place = "position_ids" in accepted or not self.layout.has_keys
        require(can_place, "model_type", kind, "a family that takes position_ids")

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> CacheMemory:
        use = lengths.resolve(self.config) if lengths else self.config
        none_B = torch.zeros(batch_size, dtype=torch.long, device=self.model.device)
        return CacheMemory({}, none_B, none_B, use.mem_len)

    def depends_on_segments(self, mem_len: int) -> bool:
        """Return True if later tokens of a segment attend to more tokens than its first one."""
        windows = self.layout.list_windows().values()
        return any(window is None or window > mem_len + 1 for window in windows)

    def loss(
        self, tokens_BL: Tensor, targets_BL: Tensor, *inputs: Any, **named: Any
    ) -> tuple[Tensor, CacheMemory]:
        logits_BLV, memory = self(tokens_BL, *inputs, **named)
        logits_YV = logits_BLV[:, -targets_BL.size(1) :].flatten(0, 1)
        return nats_of_logits(logits_YV, targets_BL.flatten()).view(targets_BL.shape), memory

    def forward(
        self,
        tokens_BL: Tensor,
        memory: CacheMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, CacheMemory]:
        tokens_BL = as_indices(tokens_BL)
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        if doc_pos_BL is None:
            # Each row is one document.
            doc_pos_BL = torch.full_like(tokens_BL, LONG_AGO)
        n_new = tokens_BL.size(1) - n_reread
        logits_BLV, memory = self.read(tokens_BL[:, :n_new], memory, doc_pos_BL[:, :n_new])
        if n_reread:
            again_BLV, _ = self.read(tokens_BL[:, n_new:], memory, doc_pos_BL[:, n_new:])
            logits_BLV = torch.cat([logits_BLV, again_BLV], dim=1)
        memory = memory.end_segment()
        self.warn_of_far(memory.position_B, n_new)
        return logits_BLV, memory

    def warn_of_far(self, position_B: Tensor, n_new: int) -> None:
        """Print, once, that a document is so long that rotations of its tokens lose digits."""
        self.n_unchecked += n_new
        if not self.warns_of_far or self.n_unchecked < N_UNCHECKED:
            return
        self.n_unchecked = 0
        if (position_B > FAR).any():
            self.warns_of_far = False
            lost = f"a document has more than {FAR:,} tokens, where float32 rounds angles"
            print_notice(f"warning: {lost}; data.restart_len, or documents, begin positions anew")

    def read(
        self, tokens_BL: Tensor, memory: CacheMemory, doc_pos_BL: Tensor
    ) -> tuple[Tensor, CacheMemory]:
        """Return logits, and the memory with all tokens.

        Masks hide keys of the document before. A state is forgotten where a document begins: the
        segment is read in pieces, which begin where one does in any row.
        """
        n_token = self.config.n_token
        parts = []
        starts = []
        if self.layout.has_states:
            starts = (doc_pos_BL == 0).any(dim=0).nonzero()[:, 0].tolist()
        for start, stop in pairwise(sorted({0, tokens_BL.size(1), *starts})):
            piece = slice(start, stop)
            memory = memory.forget_states(doc_pos_BL[:, start] == 0)
            logits_BLV, memory = self.read_piece(tokens_BL[:, piece], memory, doc_pos_BL[:, piece])
            # A folder's vocabulary may be larger than that of the text.
            parts.append(logits_BLV[..., :n_token])
        if not parts:
            weight = self.model.get_input_embeddings().weight
            return weight.new_zeros(len(tokens_BL), 0, n_token), memory
        return torch.cat(parts, dim=1), memory

    def read_piece(
        self, tokens_BL: Tensor, memory: CacheMemory, doc_pos_BL: Tensor
    ) -> tuple[Tensor, CacheMemory]:
        token_L = torch.arange(tokens_BL.size(1), device=tokens_BL.device)
        before_BL = torch.minimum(memory.filled_B[:, None] + token_L, doc_pos_BL)
        position_BL = torch.minimum(memory.position_B[:, None] + token_L, doc_pos_BL)
        cache = self.layout.make_cache(memory.cached)
        inputs = {self.cache_name: cache, "use_cache": True}
        if self.layout.has_keys:
            inputs["attention_mask"] = self.make_masks(before_BL, memory.n_kept)
            inputs["position_ids"] = position_BL
        is_step = self.layout.has_states and tokens_BL.size(1) == 1
        with keep_states(cache) if is_step else nullcontext():
            logits_BLV = self.model(tokens_BL, **inputs).logits
        memory = replace(
            memory,
            cached=cache.list_tensors(),
            filled_B=before_BL[:, -1] + 1,
            position_B=position_BL[:, -1] + 1,
        )
        return logits_BLV, memory

    def make_masks(self, before_BL: Tensor, n_kept: int) -> Tensor | dict[str, Tensor]:
        """Return masks over M cached tokens and the segment, 0 where a query attends.

        before_BL: tokens before each query to which it may attend. If layers have windows of
        different lengths, there is one mask for each of their types.
        """
        token_L = torch.arange(before_BL.size(1), device=before_BL.device)
        state_S = torch.arange(n_kept + before_BL.size(1), device=before_BL.device)
        distance_LS = token_L[:, None] + n_kept - state_S
        dtype = self.model.dtype
        masks = {}
        for kind, window in self.layout.list_windows().items():
            farthest_BL = before_BL if window is None else before_BL.clamp(max=window - 1)
            is_seen_BLS = (distance_LS >= 0) & (distance_LS <= farthest_BL[..., None])
            # Sums of scores and masks must be finite.
            mask_BLS = torch.zeros_like(is_seen_BLS, dtype=dtype)
            mask_BLS = mask_BLS.masked_fill(~is_seen_BLS, torch.finfo(dtype).min)
            masks[kind] = mask_BLS[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))


def keep_states(cache: ValueCache) -> saved_tensors_hooks:
    """Return a context in which gradients use the states of a cache as they were.

    A step of one token overwrites them in place. Weights, which are much larger, are not copied.
    """
    states = {each.untyped_storage().data_ptr() for each in cache.list_tensors().values()}

    def copy_state(saved: Tensor) -> Tensor:
        return saved.clone() if saved.untyped_storage().data_ptr() in states else saved

    return saved_tensors_hooks(copy_state, lambda saved: saved)


def find_cache_name(parameters: Mapping[str, inspect.Parameter]) -> str:
    """Return the parameter that takes a cache of transformers' own class; "" if there is none."""
    takes_cache = {name: Cache in get_args(parameters[name].annotation) for name in parameters}
    return next((name for name in CACHES if takes_cache.get(name)), "")


def build_model(model_type: str, settings: dict[str, Any], n_token: int) -> PreTrainedModel:
    """Return a new model of transformers, with random weights, in the default precision."""
    size = settings.get("vocab_size", n_token)
    expected = f"{n_token} or more, the tokens of the text"
    require(size >= n_token, "settings.vocab_size", size, expected)
    theirs = make_settings(model_type, {**settings, "vocab_size": size})
    check_rotation(getattr(theirs, "rope_parameters", None) or {})
    try:
        return AutoModelForCausalLM.from_config(theirs)
    except (RuntimeError, TypeError, ArithmeticError, LookupError, AssertionError) as error:
        raise describe_settings(error) from error


def make_settings(model_type: str, settings: dict[str, Any]) -> PreTrainedConfig:
    """Return the settings of a family; one that it does not have, or cannot be, is a ValueError."""
    default = AutoConfig.for_model(model_type)
    known = [f"settings.{name}" for name in vars(default)]
    for name in settings:
        if not hasattr(default, name):
            raise ValueError(suggest_key(f"settings.{name}", known))
    # No token is special here; the embedding of a padding token would not be trained.
    special = {name: None for name in SPECIAL if hasattr(default, name)}
    try:
        return AutoConfig.for_model(model_type, **{**settings, **special})
    # The errors of transformers and huggingface_hub have no common class.
    except Exception as error:
        raise describe_settings(error) from error


def describe_settings(error: Exception) -> ValueError:
    return ValueError(f"settings: refused by transformers: {' '.join(str(error).split())}")


def check_rotation(parameters: dict[str, Any]) -> None:
    """Refuse rotary positions, of all layers or of a type of layers, that are not of distances."""
    groups = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
    for each in groups:
        kind = each.get("rope_type")
        expected = f"none of {', '.join(VARIABLE_ROTATIONS)}"
        require(kind not in VARIABLE_ROTATIONS, "settings.rope_parameters", kind, expected)
