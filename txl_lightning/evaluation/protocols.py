"""How a text is scored. Training's validation and the final table call the same functions.

B rows   L segment   T tokens scored in each row
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.stream import Segment, Stream
from ..model import Memory, TransformerXL, evaluating, require


def segment_nats(net: TransformerXL, segment: Segment, memory: Memory) -> tuple[Tensor, Memory]:
    """Nats of a segment's targets, nats_BL, and the memory for the next one.

    Those that are not `segment.scored_BL` mean nothing.
    """
    new_BL = segment.targets_BL[:, segment.reread :]
    nats_BL, memory = net.nats(segment.tokens_BL, new_BL, memory, segment.past_BL, segment.again)
    return F.pad(nats_BL, (segment.reread, 0)), memory


def segment_answers(
    net: TransformerXL, segment: Segment, memory: Memory
) -> tuple[Tensor, Tensor, Memory]:
    """Nats of a segment's targets; whether each is the likeliest token, right_BL; the memory."""
    h_BLD, memory = net.hidden(segment.tokens_BL, memory, segment.past_BL, segment.again)
    again, h_BLD = segment.reread, h_BLD[:, segment.reread :]
    new_BL = segment.targets_BL[:, again:]
    right_BL = F.pad(net.head(h_BLD).argmax(dim=-1) == new_BL, (again, 0))
    return F.pad(net.head.nats(h_BLD, new_BL), (again, 0)), right_BL, memory


@torch.no_grad()
def stream_nats(
    model: TransformerXL,
    tokens: Tensor | np.ndarray,
    *,
    batch_size: int,
    tgt_len: int,
    mem_len: int | None = None,
    ext_len: int = 0,
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
        ext_len: tokens that a segment reads again before its own; they are scored once.

    Raises:
        ValueError: a length that cannot be, or fewer than two tokens for each row.
    """
    ids = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
    require(batch_size >= 1, "batch_size", batch_size, "at least 1")
    require(tgt_len >= 1, "tgt_len", tgt_len, "at least 1")
    require(ext_len >= 0, "ext_len", ext_len, "0 or more")
    require(len(ids) >= 2 * batch_size, "tokens", len(ids), f"at least 2 * {batch_size} rows")
    stream = Stream.of(ids, batch_size, tgt_len, ext_len)
    memory = model.empty_memory(batch_size, mem_len)
    parts = []
    with evaluating(model):
        for index in range(len(stream)):
            segment = stream.segment(index).to(memory.h_NBMD.device)
            nats_BL, memory = segment_nats(model, segment, memory)
            parts.append(nats_BL[:, segment.reread :])
    return torch.cat(parts, dim=1)
