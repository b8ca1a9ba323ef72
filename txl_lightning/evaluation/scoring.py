"""Nats of a text. Validation in training and the final table use the same memory and computation.

B rows   L segment   K scored targets   T tokens of a row   D width
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.stream import IGNORED, Segment
from ..data.tokens import Text, Tokens
from ..errors import require
from ..model import AnyMemory, CachedReader, TransformerXL, eval_mode
from .protocols import Protocol

FETCHED = 16
"""Segments whose nats are fetched from a GPU together."""


class TokenNats(NamedTuple):
    """Some scored tokens of a text: their positions in it, and the nats of each."""

    position_K: np.ndarray
    nats_K: Tensor


def score_segment(
    net: TransformerXL | CachedReader, segment: Segment, memory: AnyMemory
) -> tuple[Tensor, AnyMemory]:
    """Return nats_BL of a segment's targets, 0 where IGNORED, and the memory for the next one."""
    targets_BL, doc_pos_BL = segment.targets_for(net.head), segment.doc_pos_BL
    return net.loss(segment.tokens_BL, targets_BL, memory, doc_pos_BL, segment.n_reread)


def read_segment(
    net: TransformerXL | CachedReader, segment: Segment, memory: AnyMemory
) -> tuple[Tensor, AnyMemory]:
    """Return the states h_BLD that predict a segment's targets, and the memory for the next one."""
    h_BLD, memory = net.hidden(segment.tokens_BL, memory, segment.doc_pos_BL, segment.n_reread)
    return h_BLD[:, segment.n_context :], memory


def score_answers(
    net: TransformerXL | CachedReader, segment: Segment, memory: AnyMemory
) -> tuple[Tensor, Tensor, AnyMemory]:
    """Return nats_BL, right_BL (the target is the most likely token), and the next memory."""
    h_BLD, memory = read_segment(net, segment, memory)
    right_BL = net.head(h_BLD).argmax(dim=-1) == segment.targets_BL
    return net.head.nats(h_BLD, segment.targets_for(net.head)), right_BL, memory


def score_text(model: TransformerXL, tokens: Tokens, protocol: Protocol) -> Iterator[TokenNats]:
    """Yield every scored token of a text, a segment at a time, with the model in eval mode."""
    parts, device = score_segments(model, tokens, protocol), model.device
    # Nats are fetched together, because that waits for a GPU.
    while group := list(islice(parts, 1 if device.type == "cpu" else FETCHED)):
        nats_K = torch.cat([part.nats_K for part in group]).cpu()
        counts = [len(part.nats_K) for part in group]
        for part, part_K in zip(group, nats_K.split(counts), strict=True):
            yield TokenNats(part.position_K, part_K)


@torch.inference_mode()
def score_segments(model: TransformerXL, tokens: Tokens, protocol: Protocol) -> Iterator[TokenNats]:
    """Yield the scored tokens of each segment, with their nats on the model's device."""
    stream, reader = protocol.stream(tokens), CachedReader(model)
    memory = reader.empty_memory(protocol.batch_size, protocol.lengths)
    has_no_memory = protocol.lengths.resolve(model.config).mem_len == 0
    with eval_mode(model):
        for index in range(len(stream)):
            segment = stream.segment(index)
            scored_BL = segment.targets_BL != IGNORED
            # Segments before the first scored window have no effect without memory.
            if has_no_memory and not scored_BL.any():
                continue
            h_BLD, memory = read_segment(reader, segment.to(model.device), memory)
            # A warm-up needs no logits; the host knows which tokens are scored.
            index_K, target_K = scored_BL.flatten().nonzero()[:, 0], segment.targets_BL[scored_BL]
            on_device_K = index_K.to(model.device, non_blocking=True)
            nats_K = model.head.nats(h_BLD.flatten(0, 1)[on_device_K], target_K)
            _, _, stop = stream.lengths.bounds(stream.n_target, index)
            column_L = np.arange(stop - segment.new_len, stop) + 1 - stream.warmup_len
            position_BL = np.arange(len(scored_BL))[:, None] * stream.row_len + column_L
            yield TokenNats(position_BL[scored_BL.numpy()], nats_K)


def stream_nats(
    model: TransformerXL,
    tokens: Tensor | np.ndarray,
    *,
    batch_size: int,
    tgt_len: int,
    warmup_len: int = 0,
    **lengths: Any,
) -> Tensor:
    """Return the nats of every scored token of a text, in input order: nats_BT.

    >>> model, vocab = load("version_0")
    >>> ids = vocab.encode_text("to be or not to be")
    >>> stream_nats(model, ids, batch_size=1, tgt_len=8).shape
    torch.Size([1, 17])

    `tokens` are ids in one dimension, read in rows, each with an empty memory at first. The first
    token of a row is not scored; with a warm-up, only the first token of the text is not (nan).
    `lengths` are those of `Protocol`: mem_len, clamp_len, same_length and ext_len. The model's mode
    is restored. With enough memory, tgt_len only affects the speed.

    Raises:
        ValueError: an invalid length or id, or fewer than two tokens for each row.
    """
    lengths |= {"tgt_len": tgt_len, "warmup_len": warmup_len}
    protocol = Protocol(batch_size=batch_size, drop_last=True, **lengths)
    ids = tokens.cpu().numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
    require(ids.ndim == 1, "tokens", f"{ids.ndim} dimensions", "ids in one dimension")
    low, high, last = ids.min(initial=0), ids.max(initial=0), model.config.n_token - 1
    require(0 <= low <= high <= last, "tokens", f"ids from {low} to {high}", f"0 to {last}")
    row_len, parts = len(ids) // batch_size, list(score_text(model, Text(ids), protocol))
    nats_K = torch.cat([part.nats_K for part in parts])
    nats_N = nats_K.new_full((batch_size * row_len,), torch.nan)
    nats_N[torch.from_numpy(np.concatenate([part.position_K for part in parts]))] = nats_K
    return nats_N.view(batch_size, row_len)[:, 0 if warmup_len else 1 :].to(model.device)
