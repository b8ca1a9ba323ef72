"""Texts that are being written, as a value: their tokens, and what is remembered of them.

B rows   L tokens of the longest text   P past   V vocabulary   D width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import NonFiniteError, require
from ..model import AnyMemory, CachedReader, EvalLengths, TransformerXL

SEGMENT = 128
"""Tokens of a prompt that are read at once."""


@dataclass(frozen=True)
class DecodingState:
    """B texts that end together: before the shorter ones stands padding, which nothing sees."""

    tokens_BL: Tensor
    length_B: Tensor
    """Tokens of each text, without its padding; always in the main memory."""
    memory: AnyMemory
    read: int = 0
    """How many of the L columns have been read; their last tokens never have, or not yet."""

    def __len__(self) -> int:
        """Columns L."""
        return self.tokens_BL.size(1)

    def row(self, number: int) -> Tensor:
        """The tokens of one text, without its padding."""
        return self.tokens_BL[number, len(self) - int(self.length_B[number]) :]

    def rows(self, index_B: Tensor) -> DecodingState:
        """These rows, in this order; one may be asked for twice."""
        rows = {"tokens_BL": self.tokens_BL[index_B], "length_B": self.length_B[index_B.cpu()]}
        return replace(self, **rows, memory=self.memory.rows(index_B))

    def followed_by(self, tokens_BL: Tensor) -> DecodingState:
        """The same texts, with tokens after them that are still to be read."""
        length_B = self.length_B + tokens_BL.size(1)
        tokens_BL = torch.cat([self.tokens_BL, tokens_BL.to(self.tokens_BL)], dim=1)
        return replace(self, tokens_BL=tokens_BL, length_B=length_B)

    @property
    def is_padded(self) -> bool:
        """Whether one text is shorter than another."""
        return bool((self.length_B < len(self)).any())

    def past(self, start: int, stop: int) -> Tensor | None:
        """How many tokens of its own text stand before each token of some columns: doc_pos_BL.

        None without padding: then memory alone says what there is to be seen, and may be faster.
        """
        if not self.is_padded:
            return None
        doc_pos_BL = torch.arange(start, stop) - len(self) + self.length_B[:, None]
        return doc_pos_BL.clamp(min=0).to(self.tokens_BL.device)

    def recent(self, count: int) -> Tensor:
        """The last tokens of each text; where it has fewer, its last one again."""
        recent_BW = self.tokens_BL[:, max(len(self) - count, 0) :]
        if not self.is_padded:
            return recent_BW
        is_text_BW = torch.arange(-recent_BW.size(1), 0) >= -self.length_B[:, None]
        return recent_BW.where(is_text_BW.to(recent_BW.device), recent_BW[:, -1:])


def begun(model: TransformerXL, prompts: Sequence[Tensor], mem_len: int | None) -> DecodingState:
    """Texts of which nothing is read.

    Raises:
        ValueError: one of them is empty or has an unknown token, or there is none.
    """
    require(len(prompts) > 0, "prompts", "none", "at least one")
    length = [len(prompt_L) for prompt_L in prompts]
    require(min(length) > 0, "prompt", "an empty one", "at least one token")
    ids = torch.cat([prompt_L.cpu() for prompt_L in prompts])
    known = int(ids.min()) >= 0 and int(ids.max()) < model.config.n_token
    require(known, "prompt", ids.tolist()[:9], f"ids from 0 to {model.config.n_token - 1}")
    device = model.device
    tokens_BL = torch.zeros(len(prompts), max(length), dtype=torch.long, device=device)
    for tokens_L, prompt_L in zip(tokens_BL, prompts, strict=True):
        tokens_L[len(tokens_L) - len(prompt_L) :] = prompt_L
    return DecodingState(tokens_BL, torch.tensor(length), unread(model, len(prompts), mem_len))


def unread(model: TransformerXL, batch_size: int, mem_len: int | None) -> AnyMemory:
    """What is remembered before anything is read."""
    return CachedReader(model).empty_memory(batch_size, EvalLengths(mem_len))


@torch.inference_mode()
def read(model: TransformerXL, texts: DecodingState, ext_len: int) -> tuple[Tensor, DecodingState]:
    """The scores after each text, logits_BV, and the texts read to their ends.

    Raises:
        NonFiniteError: the scores are not finite.
    """
    memory, stop = texts.memory, len(texts)
    begin = texts.read or out_of_sight(model, texts, ext_len)
    for start, stop in pairwise(cuts(begin, len(texts))):
        first = max(start - ext_len, 0)
        tokens_BL, doc_pos_BL = texts.tokens_BL[:, first:stop], texts.past(first, stop)
        h_BLD, memory = CachedReader(model).hidden(
            tokens_BL, memory, doc_pos_BL, n_reread=min(ext_len, stop)
        )
    logits_BV = model.head(h_BLD[:, -1])
    if not logits_BV.amax(dim=-1).isfinite().all():
        raise NonFiniteError("the network's scores are not finite: its weights are of no use")
    return logits_BV, replace(texts, memory=memory, read=stop)


def out_of_sight(model: TransformerXL, texts: DecodingState, ext_len: int) -> int:
    """How many of the first tokens the last one cannot see, through the memories of all layers."""
    if model.config.memory_source == "same_layer":
        return 0
    # A layer adds what its memory holds, and the segment that the memory stands before.
    in_sight = model.config.n_layer * (texts.memory.mem_len + SEGMENT + ext_len)
    return max(len(texts) - in_sight, 0)


def cuts(read: int, end: int) -> list[int]:
    """Where segments begin and end, counted back from the end, so that padding moves none.

    The last token is one by itself, as those that are drawn: its place is the same as theirs.
    """
    return [*sorted({read, *range(end - 1, read, -SEGMENT)}), end]


def check_context(model: TransformerXL, ext_len: int, mem_len: int) -> None:
    """Refuse to read a token after the other where each would be the first."""
    require(ext_len >= 0, "ext_len", ext_len, "0 or more")
    why = "positions are absolute" if model.config.is_absolute else "mem_len is 0"
    needed = model.config.is_absolute or mem_len == 0
    require(ext_len > 0 or not needed, "ext_len", ext_len, f"at least 1, because {why}")
