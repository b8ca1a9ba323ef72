"""Nats of a text. Training's validation and the final table remember and compute in the same way.

B rows   L segment   K targets that are scored   T tokens of a row   D width
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.stream import IGNORED, Segment, Stream
from ..data.tokens import Text, Tokens
from ..model import AnyMemory, CachedReader, EvalSameLength, TransformerXL, eval_mode
from .protocols import Protocol


class TokenNats(NamedTuple):
    """Some scored tokens of a text: where they stand in it, and the nats of each."""

    at_K: np.ndarray
    nats_K: Tensor


def segment_nats(
    net: TransformerXL | CachedReader, segment: Segment, memory: AnyMemory, ext_len: int = 0
) -> tuple[Tensor, AnyMemory]:
    """Nats of a segment's targets, nats_BL, 0 where IGNORED; and the memory for the next one."""
    n_reread = min(ext_len, segment.tokens_BL.size(1))
    tokens_BL, targets_BL = segment.tokens_BL, segment.targets_BL
    return net.loss(tokens_BL, targets_BL, memory, segment.doc_pos_BL, n_reread)


def segment_hidden(
    net: TransformerXL | CachedReader, segment: Segment, memory: AnyMemory, ext_len: int = 0
) -> tuple[Tensor, AnyMemory]:
    """Hidden states of a segment, h_BLD, and the memory for the next one.

    The next segment reads this one's last ext_len tokens again. At the end of a pass it does not,
    and sees nothing of memory: its doc_pos_BL begins at 0.
    """
    n_reread = min(ext_len, segment.tokens_BL.size(1))
    return net.hidden(segment.tokens_BL, memory, segment.doc_pos_BL, n_reread)


def segment_answers(
    net: TransformerXL | CachedReader, segment: Segment, memory: AnyMemory, ext_len: int = 0
) -> tuple[Tensor, Tensor, AnyMemory]:
    """Nats of a segment's targets; True where one is the likeliest token, right_BL; the memory."""
    h_BLD, memory = segment_hidden(net, segment, memory, ext_len)
    right_BL = net.head(h_BLD).argmax(dim=-1) == segment.targets_BL
    return net.head.nats(h_BLD, segment.targets_BL), right_BL, memory


def scored_nats(
    net: TransformerXL | CachedReader, segment: Segment, memory: AnyMemory, ext_len: int = 0
) -> tuple[Tensor, AnyMemory]:
    """Nats of the targets that are scored, row by row, nats_K, and the memory.

    The logits of the others, of a sliding window all but one, are never computed.
    """
    h_BLD, memory = segment_hidden(net, segment, memory, ext_len)
    scored_BL = segment.targets_BL != IGNORED
    return net.head.nats(h_BLD[scored_BL], segment.targets_BL[scored_BL]), memory


@torch.inference_mode()
def text_parts(model: TransformerXL, tokens: Tokens, protocol: Protocol) -> Iterator[TokenNats]:
    """Every scored token of a text, a segment at a time; no more than that is held.

    The model is in eval mode until the last part is taken, and then in the mode it was in.
    """
    stream, reader = protocol.stream(tokens), CachedReader(model)
    memory = reader.empty_memory(protocol.batch_size, protocol.lengths)
    forgets = protocol.lengths.resolve(model.config).mem_len == 0
    with eval_mode(model):
        for index in range(len(stream)):
            segment = stream.segment(index)
            # A window before the first one that is scored leaves nothing behind.
            if forgets and (segment.targets_BL == IGNORED).all():
                continue
            at_K = places(stream, segment)
            here = segment.to(model.device)
            nats_K, memory = scored_nats(reader, here, memory, protocol.ext_len)
            yield TokenNats(at_K, nats_K.cpu())


def places(stream: Stream, segment: Segment) -> np.ndarray:
    """Where in the text a segment's scored targets stand, row by row."""
    _, _, stop = stream.lengths.bounds(stream.total, segment.index)
    tgt_len = segment.targets_BL.size(1)
    place_L = np.arange(stop - tgt_len, stop) + 1 - stream.warmup_len
    row_B1 = np.arange(stream.batch_size)[:, None]
    return (row_B1 * stream.row_len + place_L)[segment.targets_BL.numpy() != IGNORED]


def stream_nats(
    model: TransformerXL,
    tokens: Tensor | np.ndarray,
    *,
    batch_size: int,
    tgt_len: int,
    mem_len: int | None = None,
    clamp_len: int | None = None,
    same_length: EvalSameLength = None,
    ext_len: int = 0,
    warmup_len: int = 0,
) -> Tensor:
    """Nats of every scored token of a text, in input order: nats_BT.

    The text is read in `batch_size` rows, each with an empty memory at first; a row's first token
    is not scored. The model is used in eval mode and left in the mode it was in.

    Args:
        model: the network.
        tokens: the text's ids, one dimension.
        batch_size: rows B.
        tgt_len: tokens L in a segment; with enough memory it changes nothing but the speed.
        mem_len: states M remembered; left out, what the model was trained with.
        clamp_len: greatest distance told apart; left out, as in training.
        same_length: how many states each query sees; left out, as in training; "all" that there
            are.
        ext_len: tokens that a segment reads again before its own; they are scored once.
        warmup_len: tokens that each row but the first reads before its own. The first token of a
            row is then scored like the others; of the text's own first token the nats are nan.

    Raises:
        ValueError: a length that cannot be, or fewer than two tokens for each row.
    """
    lengths = {"tgt_len": tgt_len, "mem_len": mem_len, "clamp_len": clamp_len}
    lengths |= {"same_length": same_length, "ext_len": ext_len, "warmup_len": warmup_len}
    protocol = Protocol(batch_size=batch_size, rest="dropped", **lengths)
    ids = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
    parts = list(text_parts(model, Text(ids), protocol))
    nats_K = torch.cat([part.nats_K for part in parts])
    row_len = len(ids) // batch_size
    nats_N = nats_K.new_full((batch_size * row_len,), torch.nan)
    nats_N[torch.from_numpy(np.concatenate([part.at_K for part in parts]))] = nats_K
    first = 0 if warmup_len else 1
    return nats_N.view(batch_size, row_len)[:, first:].to(model.device)
