"""Texts being decoded, as a value: their tokens, and the memory of what was read.

B texts   L tokens of the longest text   W recent tokens   V vocabulary   D width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import NonFiniteError, require
from ..model import AnyMemory, CachedReader, EvalLengths, TransformerXL

SEGMENT_LEN = 128
"""Tokens of a prompt that are read at once."""


@dataclass(frozen=True)
class DecodingState:
    """B texts that end together; the shorter ones are padded at their start, masked by position."""

    tokens_BL: Tensor
    length_B: Tensor
    """Tokens of each text without padding; always in host memory."""
    memory: AnyMemory
    n_read: int = 0
    """Columns read so far; the last token of a text is read together with the next one."""

    def __len__(self) -> int:
        return self.tokens_BL.size(1)

    @property
    def is_padded(self) -> bool:
        return bool((self.length_B < len(self)).any())

    def row_tokens(self, row: int) -> Tensor:
        return self.tokens_BL[row, len(self) - int(self.length_B[row]) :]

    def select_rows(self, index_B: Tensor) -> DecodingState:
        """Return these rows in this order; a row may occur twice."""
        memory, length_B = self.memory.rows(index_B), self.length_B[index_B.cpu()]
        return replace(self, tokens_BL=self.tokens_BL[index_B], length_B=length_B, memory=memory)

    def append_tokens(self, tokens_BL: Tensor) -> DecodingState:
        length_B = self.length_B + tokens_BL.size(1)
        tokens_BL = torch.cat([self.tokens_BL, tokens_BL.to(self.tokens_BL)], dim=1)
        return replace(self, tokens_BL=tokens_BL, length_B=length_B)

    def doc_positions(self, start: int, stop: int) -> Tensor | None:
        """Return the tokens of its own text before each token of these columns: doc_pos_BL."""
        if not self.is_padded:
            # The memory alone then says what is visible, which is faster.
            return None
        doc_pos_BL = torch.arange(start, stop) - len(self) + self.length_B[:, None]
        return doc_pos_BL.clamp(min=0).to(self.tokens_BL.device)

    def recent_tokens(self, count: int) -> Tensor:
        """Return the last tokens of each text, recent_BW; shorter texts repeat their last one."""
        recent_BW = self.tokens_BL[:, max(len(self) - count, 0) :]
        if not self.is_padded:
            return recent_BW
        is_text_BW = torch.arange(-recent_BW.size(1), 0) >= -self.length_B[:, None]
        return recent_BW.where(is_text_BW.to(recent_BW.device), recent_BW[:, -1:])


def start_decoding(
    model: TransformerXL, prompts: Sequence[Tensor], mem_len: int | None = None
) -> DecodingState:
    """Return the state before anything of the prompts is read."""
    require(len(prompts) > 0, "prompts", "none", "at least one")
    lengths = [len(prompt_L) for prompt_L in prompts]
    require(min(lengths) > 0, "prompt", "an empty one", "at least one token")
    ids = torch.cat([prompt_L.cpu() for prompt_L in prompts])
    n_token = model.config.n_token
    is_known = int(ids.min()) >= 0 and int(ids.max()) < n_token
    require(is_known, "prompt", ids.tolist()[:9], f"ids from 0 to {n_token - 1}")
    tokens_BL = torch.zeros(len(prompts), max(lengths), dtype=torch.long, device=model.device)
    for tokens_L, prompt_L in zip(tokens_BL, prompts, strict=True):
        tokens_L[len(tokens_L) - len(prompt_L) :] = prompt_L
    memory = CachedReader(model).empty_memory(len(prompts), EvalLengths(mem_len=mem_len))
    return DecodingState(tokens_BL, torch.tensor(lengths), memory)


@torch.inference_mode()
def advance(
    reader: CachedReader, state: DecodingState, ext_len: int = 0
) -> tuple[Tensor, DecodingState]:
    """Read the texts to their ends; return the logits of the next token, logits_BV, and the state.

    Raises:
        NonFiniteError: the logits are not finite.
    """
    memory, end = state.memory, len(state)
    # Segments are counted back from the end, so that padding moves none; the last token is one of
    # its own, as each generated token is.
    start = state.n_read or skippable_prefix(reader.net, state, ext_len)
    bounds = [*sorted({start, *range(end - 1, start, -SEGMENT_LEN)}), end]
    for first, stop in pairwise(bounds):
        first = max(first - ext_len, 0)
        tokens_BL, doc_pos_BL = state.tokens_BL[:, first:stop], state.doc_positions(first, stop)
        h_BLD, memory = reader.hidden(tokens_BL, memory, doc_pos_BL, min(ext_len, stop))
    logits_BV = reader.net.head(h_BLD[:, -1])
    if not logits_BV.amax(dim=-1).isfinite().all():
        raise NonFiniteError("the logits are not finite: the weights of the network are invalid")
    return logits_BV, replace(state, memory=memory, n_read=end)


def skippable_prefix(net: TransformerXL, state: DecodingState, ext_len: int) -> int:
    """Return how many of the first tokens the last one cannot see through any layer's memory."""
    if net.config.memory_source == "same_layer":
        return 0
    # Each layer adds what its memory holds and the segment that follows this memory.
    visible = net.config.n_layer * (state.memory.mem_len + SEGMENT_LEN + ext_len)
    return max(len(state) - visible, 0)


def check_lengths(model: TransformerXL, max_new_tokens: int, ext_len: int, mem_len: int) -> None:
    """Refuse lengths with which a token would be predicted from nothing but itself."""
    require(max_new_tokens >= 0, "max_new_tokens", max_new_tokens, "0 or more")
    require(ext_len >= 0, "ext_len", ext_len, "0 or more")
    reason = "positions are absolute" if model.config.is_absolute else "mem_len is 0"
    is_needed = model.config.is_absolute or mem_len == 0
    require(ext_len > 0 or not is_needed, "ext_len", ext_len, f"at least 1, because {reason}")
