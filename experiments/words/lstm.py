"""An LSTM with tied weights (Press and Wolf 2017), its state as memory, as in a user's package.

Embedding and softmax, plain or adaptive, are those of the package.

B rows   L tokens in the segment   D width   N layers   V vocabulary
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from txl_lightning import TransformerXLConfig
from txl_lightning.model.adaptive import embedding_and_head


@dataclass(frozen=True)
class LSTMConfig:
    """Sizes of an LSTM; with mem_len 0, its state is not carried to the next segment."""

    n_token: int = 256
    width: int = 256
    n_layer: int = 2
    dropout: float = 0.0
    mem_len: int = 1
    cutoffs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # A checkpoint has a list.
        object.__setattr__(self, "cutoffs", tuple(self.cutoffs))

    def build(self) -> "LSTM":
        return LSTM(self)


class State(NamedTuple):
    h_NBD: Tensor
    c_NBD: Tensor
    mem_len: int
    batch_size = property(lambda self: self.h_NBD.size(1))

    def tensors(self):
        return {"h_NBD": self.h_NBD, "c_NBD": self.c_NBD}

    def restore(self, tensors):
        return self._replace(**tensors)

    def rows(self, index_B):
        return State(self.h_NBD[:, index_B], self.c_NBD[:, index_B], self.mem_len)

    def to(self, device):
        return State(self.h_NBD.to(device), self.c_NBD.to(device), self.mem_len)

    def resize(self, lengths):
        state = (each * (lengths.mem_len > 0) for each in (self.h_NBD, self.c_NBD))
        return State(*state, lengths.mem_len)


class LSTM(nn.Module):
    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        D = config.width
        sizes = {"n_token": config.n_token, "d_model": D, "cutoffs": config.cutoffs}
        self.embedding, self.head = embedding_and_head(TransformerXLConfig(n_head=1, **sizes))
        # As linear maps, which Muon knows: of inputs and of states, for each layer.
        self.maps = nn.ModuleList(nn.Linear(D, 4 * D) for _ in range(2 * config.n_layer))
        self.drop = nn.Dropout(config.dropout)
        for table_VD in self.embedding.parameters():
            nn.init.normal_(table_VD, std=D**-0.5)

    def empty_memory(self, batch_size, lengths=None):
        config = self.config
        bias = self.maps[0].bias
        zero_NBD = bias.new_zeros(config.n_layer, batch_size, config.width)
        mem_len = lengths.resolve(config).mem_len if lengths else config.mem_len
        return State(zero_NBD, zero_NBD, mem_len)

    def loss(self, tokens_BL, targets_BL, *inputs, **named):
        h_BLD, memory = self.encode(tokens_BL, *inputs, **named)
        return self.head.nats(h_BLD[:, -targets_BL.size(1) :], targets_BL), memory

    def forward(self, tokens_BL, *inputs, **named):
        h_BLD, memory = self.encode(tokens_BL, *inputs, **named)
        return self.head(h_BLD), memory

    def encode(self, tokens_BL, memory=None, doc_pos_BL=None, n_reread=0):
        *state, mem_len = memory or self.empty_memory(len(tokens_BL))
        h_LBD = self.drop(self.embedding(tokens_BL.T))
        kept = state
        parts = []
        is_new_BL = torch.zeros_like(tokens_BL).bool() if doc_pos_BL is None else doc_pos_BL == 0
        # Cut where a document begins in any row, and where memory ends.
        cuts = {0, len(h_LBD) - n_reread, len(h_LBD), *is_new_BL.any(0).nonzero()[:, 0].tolist()}
        for start, stop in pairwise(sorted(cuts)):
            state = tuple(each.masked_fill(is_new_BL[:, start, None], 0) for each in state)
            out_LBD, state = self.run_layers(h_LBD[start:stop], state)
            kept = state if stop == len(h_LBD) - n_reread else kept
            parts = [*parts, out_LBD]
        h_BLD = self.drop(torch.cat(parts)).transpose(0, 1)
        return h_BLD, State(*(each.detach() * (mem_len > 0) for each in kept), mem_len)

    def run_layers(self, h_LBD, state):
        pairs = zip(self.maps[::2], self.maps[1::2], strict=True)
        weights = [w for x, h in pairs for w in (x.weight, h.weight, x.bias, h.bias)]
        how = True, self.config.n_layer, self.config.dropout, self.training, False, False
        out_LBD, *state = torch.lstm(h_LBD, state, weights, *how)
        return out_LBD, tuple(state)
