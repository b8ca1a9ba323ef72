"""The state of decoding, as a value: tokens, and the memory of the tokens read.

B texts   L tokens of the longest text   W recent tokens   V vocabulary   D width
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import NonFiniteError, require
from ..model import (
    EvalLengths,
    Network,
    find_device,
    find_network,
    holds_keys,
    is_absolute,
)
from ..model.adaptation import (
    Adaptation,
    AdaptedMemory,
    prefix_names,
    select_names,
)
from ..model.contract import AnyMemory
from ..model.reading import Reader, read_segments

SEGMENT_LEN = 128  # tokens per segment of a prompt
KEPT = 1024  # tokens of a text already read that a long session keeps, for example for a penalty


@dataclass(frozen=True)
class DecodingState:
    """B texts aligned at their ends; shorter ones are padded at the start, masked by position.

    >>> model, vocab = load("version_0")
    >>> start = start_decoding(model, [encode_prompt("to be", vocab)])
    >>> [read] = decode_steps(model, start, 1, Sampling(seed=1))
    >>> torch.save(read.tensors(), "state.pt")
    >>> again = start.restore(torch.load("state.pt"))
    >>> torch.equal(again.tokens_BL, read.tokens_BL), again.n_read
    (True, 5)

    It is a value: no method changes it. `append_tokens(tokens_BL)` returns the state with more
    text, not read yet. `drop_read()` returns one without most of the tokens that the memory
    replaces, for a text without end. `tensors` has what a process must save, and `restore` of a
    state with the same settings goes on.
    """

    tokens_BL: Tensor
    """The last tokens of each text: all, but for what `drop_read` has dropped."""
    length_B: Tensor
    """Tokens of each whole text without padding; always in host memory."""
    memory: AnyMemory
    ext_len: int = 0
    """Tokens read again with each new one, in addition to the memory."""
    n_read: int = 0
    """Columns read so far; the last token is read when the next one is predicted."""
    adaptation: Adaptation = Adaptation()
    """The ways in which the text is learned from."""

    def __len__(self) -> int:
        return self.tokens_BL.size(1)

    @property
    def n_unread(self) -> int:
        """Tokens after those read, but for the last one, which predicts what comes."""
        return len(self) - 1 - self.n_read

    @property
    def is_padded(self) -> bool:
        return bool((self.length_B < len(self)).any())

    def row_tokens(self, row: int) -> Tensor:
        """Return the tokens of a text without padding."""
        return self.tokens_BL[row, max(len(self) - int(self.length_B[row]), 0) :]

    def append_tokens(self, tokens_BL: Tensor) -> DecodingState:
        length_B = self.length_B + tokens_BL.size(1)
        tokens_BL = torch.cat([self.tokens_BL, tokens_BL.to(self.tokens_BL)], dim=1)
        return replace(self, tokens_BL=tokens_BL, length_B=length_B)

    def drop_read(self, count: int = KEPT) -> DecodingState:
        """Return the same state with `count` of the columns read, which memory replaces."""
        n_dropped = self.n_read - max(count, self.ext_len)
        if n_dropped <= 0:
            return self
        # A copy: a view would keep all that was read.
        kept_BL = self.tokens_BL[:, n_dropped:].clone()
        return replace(self, tokens_BL=kept_BL, n_read=self.n_read - n_dropped)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save; weights that have learned are in the reader."""
        texts = {"tokens_BL": self.tokens_BL.clone(), "length_B": self.length_B}
        memory = prefix_names("memory.", self.memory.tensors())
        return {**texts, "n_read": torch.tensor(self.n_read), **memory}

    def restore(self, tensors: dict[str, Tensor]) -> DecodingState:
        """Return the state saved by `tensors`, with the settings of this one."""
        texts = {name: tensors[name] for name in ("tokens_BL", "length_B")}
        memory = self.memory.restore(select_names("memory.", tensors))
        return replace(self, **texts, n_read=int(tensors["n_read"]), memory=memory)

    def doc_positions(self, start: int, stop: int) -> Tensor | None:
        """Return the number of tokens of its text before each of these columns: doc_pos_BL."""
        if not self.is_padded:
            # Without padding, the mask of the memory is enough, and faster.
            return None
        doc_pos_BL = torch.arange(start, stop) - len(self) + self.length_B[:, None]
        return doc_pos_BL.clamp(min=0).to(self.tokens_BL.device)

    def recent_tokens(self, count: int) -> Tensor:
        """Return the last tokens of each text, recent_BW; shorter texts repeat their last one."""
        is_kept = len(self) >= min(count, int(self.length_B.max()))
        require(is_kept, "penalty_window", count, f"at most {len(self)}, the tokens kept")
        recent_BW = self.tokens_BL[:, max(len(self) - count, 0) :]
        if not self.is_padded:
            return recent_BW
        is_text_BW = torch.arange(-recent_BW.size(1), 0) >= -self.length_B[:, None]
        return recent_BW.where(is_text_BW.to(recent_BW.device), recent_BW[:, -1:])


def find_missing_memory(model: Network, mem_len: int | None) -> str | None:
    """Return why tokens must be read again with each new one, or None if memory suffices."""
    if is_absolute(model):
        return "positions are absolute"
    is_empty = EvalLengths(mem_len).resolve(model.config).mem_len == 0
    return "mem_len is 0" if is_empty else None


def start_decoding(
    model: Network,
    prompts: Sequence[Tensor],
    mem_len: int | None = None,
    ext_len: int = 0,
    adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
) -> DecodingState:
    """Return the state before any token of the prompts is read; each prompt_L has ids.

    >>> model, vocab = load("version_0")
    >>> prompts = [encode_prompt(text, vocab) for text in ("to be", "or")]
    >>> state = start_decoding(model, prompts)
    >>> state.tokens_BL.shape, state.length_B, state.n_read
    (torch.Size([2, 5]), tensor([5, 2]), 0)

    Raises:
        ValueError: no prompt, an empty one, an id that the network has not, or a network without a
            memory and no ext_len.
    """
    adaptation.require_one_document()
    model = find_network(model)
    require(len(prompts) > 0, "prompts", "none", "at least one")
    lengths = [len(prompt_L) for prompt_L in prompts]
    require(min(lengths) > 0, "prompt", "empty prompt", "at least one token")
    # Shorter ones are padded at the beginning, which would move the units of the network.
    unit_len = getattr(model.config, "unit_len", 1)
    expected = f"one length for all, as the network reads units of {unit_len} tokens"
    is_possible = unit_len == 1 or min(lengths) == max(lengths)
    require(is_possible, "prompts", f"lengths {min(lengths)} to {max(lengths)}", expected)
    ids = torch.cat([prompt_L.cpu() for prompt_L in prompts])
    n_token = model.config.n_token
    is_known = int(ids.min()) >= 0 and int(ids.max()) < n_token
    require(is_known, "prompt", ids.tolist()[:9], f"ids from 0 to {n_token - 1}")
    require(ext_len >= 0, "ext_len", ext_len, "0 or more")
    # Otherwise the context would be a single token.
    reason = find_missing_memory(model, mem_len)
    expected = f"the number of tokens that are read again for each new one, because {reason}"
    require(not reason or ext_len > 0, "ext_len", ext_len, expected)
    tokens_BL = torch.zeros(len(prompts), max(lengths), dtype=torch.long, device=find_device(model))
    for tokens_L, prompt_L in zip(tokens_BL, prompts, strict=True):
        tokens_L[len(tokens_L) - len(prompt_L) :] = prompt_L
    reader = Reader(model, adaptation)
    memory = reader.empty_memory(len(prompts), EvalLengths(mem_len))
    return DecodingState(tokens_BL, torch.tensor(lengths), memory, ext_len, adaptation=adaptation)


@torch.inference_mode()
def read_to_end(reader: Reader, state: DecodingState) -> tuple[Tensor, DecodingState]:
    """Read the texts to their ends; return logits_BV of the next token, and the state."""
    h_BLD, state = read_tokens(reader, state, len(state))
    logits_BV = reader.head(h_BLD[:, -1])
    if isinstance(state.memory, AdaptedMemory):
        doc_pos_B1 = state.doc_positions(len(state) - 1, len(state))
        logits_BV = state.memory.cache.mix(logits_BV, doc_pos_B1)
    if not logits_BV.amax(dim=-1).isfinite().all():
        raise NonFiniteError("the logits are not finite: the weights of the network are invalid")
    return logits_BV, state


def read_tokens(reader: Reader, state: DecodingState, end: int) -> tuple[Tensor, DecodingState]:
    """Read the texts up to column `end`; return the states h_BLD of the last segment read."""
    # Segments are aligned to the end, so that padding does not shift them; the last token is its
    # own segment, like each generated token.
    start = state.n_read or count_skippable_tokens(reader, state)
    bounds = [*sorted({start, *range(end - 1, start, -SEGMENT_LEN)}), end]
    where = bounds, state.ext_len, state.doc_positions
    segments = read_segments(reader, state.tokens_BL, state.memory, *where)
    [(h_BLD, memory)] = deque(segments, maxlen=1)
    return h_BLD, replace(state, memory=memory, n_read=end)


def count_skippable_tokens(net: Reader, state: DecodingState) -> int:
    """Return the number of first tokens that cannot affect the last one through any memory."""
    memory = state.memory.memory if isinstance(state.memory, AdaptedMemory) else state.memory
    # Other memories may hold more of a text than a few states of each layer below.
    if not holds_keys(memory):
        return 0
    # Each layer extends the context by its memory and the segment after it.
    visible = net.config.n_layer * (state.memory.mem_len + SEGMENT_LEN + state.ext_len)
    return max(len(state) - visible, 0)
