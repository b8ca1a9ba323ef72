"""Recurrent memory tokens (Bulatov et al. 2022) around the layers of a Transformer-XL.

Each part of a text is read between memory tokens and copies of them, whose states are the memory
tokens of the next part. The gradient goes through all parts of a segment.

B rows   L tokens   P tokens of a part   M memory tokens   D width   T = P + 2 M
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from txl_lightning import TransformerXLConfig
from txl_lightning.model import EvalLengths


@dataclass(frozen=True)
class MemoryTokensConfig:
    """Sizes of a Transformer with memory tokens; mem_len is their number."""

    n_token: int = 256
    n_layer: int = 4
    n_head: int = 4
    d_model: int = 128
    dropout: float = 0.0
    mem_len: int = 8
    part_len: int = 32
    """Tokens of a part; the gradient goes through tgt_len / part_len of them."""

    def build(self) -> "MemoryTokens":
        return MemoryTokens(self)


class Carried(NamedTuple):
    m_BMD: Tensor
    tokens_BP: Tensor  # of a part that is not complete, which is read again
    doc_pos_BP: Tensor
    batch_size = property(lambda self: len(self.m_BMD))
    tensors, restored = (lambda self: self._asdict()), (lambda self, each: self._replace(**each))
    rows = lambda self, index_B: Carried(*(each[index_B] for each in self))  # noqa: E731
    to = lambda self, device: Carried(*(each.to(device) for each in self))  # noqa: E731
    resized = lambda self, lengths: self  # noqa: E731


class MemoryTokens(nn.Module):
    def __init__(self, config: MemoryTokensConfig) -> None:
        super().__init__()
        sizes = {name: getattr(config, name) for name in ("n_token", "n_layer", "n_head", "d_model")}
        options = {"dropout": config.dropout, "norm": "pre", "init_std": 0.05, "mem_len": 0}
        self.config, self.xl = config, TransformerXLConfig(**sizes, **options).build()
        self.first_MD = nn.Parameter(0.5 * torch.randn(config.mem_len, config.d_model))

    def empty_memory(self, batch_size, lengths=None):
        none_B0 = torch.zeros(batch_size, 0, dtype=torch.long, device=self.first_MD.device)
        return Carried(self.first_MD.detach().expand(batch_size, -1, -1), none_B0, none_B0)

    def forward(self, tokens_BL, memory=None, doc_pos_BL=None, n_reread=0):
        h_BLD, memory = self.read(tokens_BL, memory, doc_pos_BL, n_reread)
        return self.xl.head(h_BLD), memory

    def loss(self, tokens_BL, targets_BL, memory=None, doc_pos_BL=None, n_reread=0):
        h_BLD, memory = self.read(tokens_BL, memory, doc_pos_BL, n_reread)
        return self.xl.head.nats(h_BLD[:, -targets_BL.size(1) :], targets_BL), memory

    def read(self, tokens_BL, memory, doc_pos_BL, n_reread):
        m_BMD, old_BP, old_pos_BP = memory or self.empty_memory(len(tokens_BL))
        doc_pos_BL = torch.full_like(tokens_BL, 1 << 30) if doc_pos_BL is None else doc_pos_BL
        tokens_BL, pos_BL = torch.cat([old_BP, tokens_BL], 1), torch.cat([old_pos_BP, doc_pos_BL], 1)
        end, size, states = tokens_BL.size(1) - n_reread, self.config.part_len, []
        kept, start = m_BMD, 0
        for start in range(0, tokens_BL.size(1), size):
            part = slice(start, start + size)
            h_BPD, m_BMD = self.read_part(tokens_BL[:, part], pos_BL[:, part], m_BMD)
            states.append(h_BPD)
            kept = m_BMD if start + size <= end else kept
        rest = slice(end - end % size, end)
        memory = Carried(kept.detach(), tokens_BL[:, rest], pos_BL[:, rest])
        return torch.cat(states, dim=1)[:, old_BP.size(1) :], memory

    def read_part(self, tokens_BP, pos_BP, m_BMD):
        (B, P), M, xl, dtype = tokens_BP.shape, m_BMD.size(1), self.xl, self.xl.compute_dtype
        m_BMD = torch.where(pos_BP[:, :1, None] == 0, self.first_MD, m_BMD)
        x_BPD = xl.embedding(tokens_BP) * self.config.d_model**0.5
        h_BTD = xl.drop(torch.cat([m_BMD, x_BPD, m_BMD], 1)).to(dtype)
        # A document that begins within the part hides the memory tokens before it.
        place_P, one_BM = torch.arange(P, device=pos_BP.device), torch.ones_like(m_BMD[..., 0]).long()
        pos_BP = torch.where(pos_BP >= place_P, place_P + M, pos_BP)
        pos_BT = torch.cat([one_BM.cumsum(1) - 1, pos_BP, pos_BP[:, -1:] + one_BM.cumsum(1)], 1)
        none = xl.empty_memory(B, EvalLengths(mem_len=0))
        mask_BTT, terms_N = none.attention_mask(P + 2 * M, pos_BT), xl.positions(none.distances(P + 2 * M))
        for layer, none_BMD, terms in zip(xl.layers, none.h_NBMD, terms_N, strict=True):
            h_BTD = layer(h_BTD, none_BMD.to(dtype), terms, mask_BTT).to(dtype)
        h_BTD = xl.drop(xl.final_norm(h_BTD))
        return h_BTD[:, M : M + P], h_BTD[:, M + P :]
