"""An LSTM (Hochreiter and Schmidhuber 1997; tied weights: Press and Wolf 2017), its state as memory.

A network in one file, as any package may have it (txl_lightning/model/contract.py).

B rows   L tokens in the segment   D width   N layers   V vocabulary
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class LSTMConfig:
    """Sizes of an LSTM."""

    n_token: int = 256
    width: int = 256
    """Width of the embeddings and of the state of each layer."""
    n_layer: int = 2
    dropout: float = 0.0
    mem_len: int = 1
    """1: the state is carried to the next segment; 0: it is not."""

    def build(self) -> "LSTM":
        return LSTM(self)


class State(NamedTuple):
    h_NBD: Tensor
    c_NBD: Tensor
    mem_len: int
    batch_size = property(lambda self: self.h_NBD.size(1))

    def tensors(self):
        return {"h_NBD": self.h_NBD, "c_NBD": self.c_NBD}

    def restored(self, tensors):
        return self._replace(**tensors)

    def rows(self, index_B):
        return self.restored({name: each[:, index_B] for name, each in self.tensors().items()})

    def to(self, device):
        return self.restored({name: each.to(device) for name, each in self.tensors().items()})

    def resized(self, lengths):
        return self._replace(mem_len=lengths.mem_len)


class LSTM(nn.Module):
    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config, D = config, config.width
        self.embedding, self.head = nn.Embedding(config.n_token, D), nn.Linear(D, config.n_token)
        self.head.weight = self.embedding.weight
        self.lstm, self.drop = nn.LSTM(D, D, config.n_layer), nn.Dropout(config.dropout)
        nn.init.normal_(self.embedding.weight, std=D**-0.5)

    def empty_memory(self, batch_size, lengths=None):
        zero_NBD = self.head.bias.new_zeros(self.config.n_layer, batch_size, self.config.width)
        use = lengths.resolve(self.config) if lengths else self.config
        return State(zero_NBD, zero_NBD, use.mem_len)

    def forward(self, tokens_BL, memory=None, doc_pos_BL=None, n_reread=0):
        memory, end = memory or self.empty_memory(len(tokens_BL)), tokens_BL.size(1)
        is_new_BL = torch.zeros_like(tokens_BL) if doc_pos_BL is None else doc_pos_BL == 0
        h_LBD, parts = self.drop(self.embedding(tokens_BL.T)), []
        state = kept = memory.h_NBD.to(h_LBD.dtype), memory.c_NBD.to(h_LBD.dtype)
        # Cut where a document begins in any row, and where memory ends.
        cuts = {0, end - n_reread, end, *is_new_BL.any(dim=0).nonzero()[:, 0].tolist()}
        for start, stop in pairwise(sorted(cuts)):
            state = [each.masked_fill(is_new_BL[:, start, None].bool(), 0) for each in state]
            out_LBD, state = self.lstm(h_LBD[start:stop], (*state,))
            parts.append(out_LBD)
            kept = state if stop == end - n_reread else kept
        kept = [each.detach() * (memory.mem_len > 0) for each in kept]
        logits_BLV = self.head(self.drop(torch.cat(parts))).transpose(0, 1)
        return logits_BLV, State(*kept, memory.mem_len)

    def loss(self, tokens_BL, targets_BL, memory=None, doc_pos_BL=None, n_reread=0):
        logits_BLV, memory = self(tokens_BL, memory, doc_pos_BL, n_reread)
        logits_BVL = logits_BLV[:, -targets_BL.size(1) :].float().transpose(1, 2)
        return F.cross_entropy(logits_BVL, targets_BL, reduction="none"), memory
