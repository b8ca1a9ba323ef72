"""Recurrent memory tokens (Bulatov et al. 2022) in a Transformer-XL; gradients cross parts.

B rows   L tokens   P tokens of a part   M memory tokens   T = M + P + M   D width
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from txl_lightning import TransformerXLConfig


@dataclass(frozen=True)
class MemoryTokensConfig:
    """Copies of mem_len memory tokens after part_len tokens become those before the next ones."""

    n_token: int = 256
    n_layer: int = 4
    d_model: int = 128
    mem_len: int = 8
    part_len: int = 32

    def build(self) -> "MemoryTokens":
        return MemoryTokens(self)


class Carried(NamedTuple):
    m_BMD: Tensor
    tokens_BP: Tensor  # of a part that is not complete: it is read again
    doc_pos_BP: Tensor
    batch_size = property(lambda self: len(self.m_BMD))

    def tensors(self):
        return self._asdict()

    def restore(self, tensors):
        return Carried(**tensors)

    def rows(self, index_B):
        return Carried(*(each[index_B] for each in self))

    def to(self, device):
        return Carried(*(each.to(device) for each in self))

    def resize(self, lengths):
        return self._replace(m_BMD=self.m_BMD[:, : lengths.mem_len])


class MemoryTokens(nn.Module):
    def __init__(self, config):
        super().__init__()
        sizes = {name: getattr(config, name) for name in ("n_token", "n_layer", "d_model")}
        sizes |= {"mem_len": 0, "norm": "pre", "init_std": 0.05}
        self.config, self.xl = config, TransformerXLConfig(**sizes).build()
        self.first_MD = nn.Parameter(torch.randn(config.mem_len, config.d_model))

    def empty_memory(self, batch_size, lengths=None):
        none_B0 = torch.zeros(batch_size, 0, dtype=torch.long, device=self.first_MD.device)
        m_MD = self.first_MD[: lengths.resolve(self.config).mem_len if lengths else None].detach()
        return Carried(m_MD.expand(batch_size, -1, -1), none_B0, none_B0)

    def loss(self, tokens_BL, targets_BL, *inputs, **named):
        logits_BLV, memory = self(tokens_BL, *inputs, **named)
        logits_BVL = logits_BLV[:, -targets_BL.size(1) :].float().mT
        return nn.functional.cross_entropy(logits_BVL, targets_BL, reduction="none"), memory

    def forward(self, tokens_BL, memory=None, doc_pos_BL=None, n_reread=0):
        m_BMD, *old = memory or self.empty_memory(len(tokens_BL))
        doc_pos_BL = torch.full_like(tokens_BL, 1 << 30) if doc_pos_BL is None else doc_pos_BL
        new = [torch.cat(pair, dim=1) for pair in zip(old, (tokens_BL, doc_pos_BL), strict=True)]
        end, size, kept_BMD, states = new[0].size(1) - n_reread, self.config.part_len, m_BMD, []
        for part in zip(*(each.split(size, dim=1) for each in new), strict=True):
            h_BPD, m_BMD = self.read_part(*part, m_BMD)
            states.append(h_BPD)
            kept_BMD = m_BMD if size * len(states) <= end else kept_BMD
        h_BLD = torch.cat(states, dim=1)[:, -tokens_BL.size(1) :]
        rest = (each[:, end - end % size : end] for each in new)
        return self.xl.head(h_BLD), Carried(kept_BMD.detach(), *rest)

    def read_part(self, tokens_BP, doc_pos_BP, m_BMD):
        xl, (B, P), M = self.xl, tokens_BP.shape, m_BMD.size(1)
        # A document that begins in the part has no memory tokens before it, and the first after it.
        is_old_B11 = (doc_pos_BP[:, 0] > 0)[:, None, None], (doc_pos_BP[:, -1] >= P)[:, None, None]
        m_BMD, copy_BMD = (m_BMD.where(is_old, self.first_MD[:M]) for is_old in is_old_B11)
        x_BPD = xl.embedding(tokens_BP) * self.config.d_model**0.5
        h_BTD = torch.cat([m_BMD, x_BPD, copy_BMD], dim=1)
        place_T = torch.arange(P + M, device=tokens_BP.device)
        doc_pos_BP = doc_pos_BP.where(doc_pos_BP < place_T[:P], place_T[:P] + M)
        copy_pos_BM = doc_pos_BP[:, -1:] + 1 + place_T[:M]
        pos_BT = torch.cat([place_T[:M].expand(B, -1), doc_pos_BP, copy_pos_BM], dim=1)
        none, T = xl.empty_memory(B), P + 2 * M
        mask_BTT, terms_N = none.attention_mask(T, pos_BT), xl.positions(none.distances(T))
        for layer, none_BMD, terms in zip(xl.layers, none.h_NBMD, terms_N, strict=True):
            h_BTD = layer(h_BTD, none_BMD, terms, mask_BTT)
        return xl.final_norm(h_BTD).split([M, P, M], dim=1)[1:]
