"""Transformer-XL (Dai et al. 2019), top-down. Read this first.

    logits_BLV, memory = model(tokens_BL, memory)

B rows read in parallel   L tokens in the segment   M remembered   S = M + L seen
D width   F inner width   V vocabulary   N layers   (H heads and K: attention.py)
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import RelativeAttention, join
from .config import TransformerXLConfig
from .memory import Memory
from .positions import SCHEMES, DistanceTerms


class TransformerXL(nn.Module):
    """A language model that reads a text segment by segment and remembers (Section 3)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.n_token, config.d_model)
        self.positions = SCHEMES[config.positions](config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.final_norm = output_norm(config)
        self.head = Head(config, self.embedding)
        self.drop = nn.Dropout(config.dropout)
        initialise(self, config.init_std)

    def forward(
        self,
        tokens_BL: Tensor,
        memory: Memory | None = None,
        past_BL: Tensor | None = None,
        again: int = 0,
    ) -> tuple[Tensor, Memory]:
        """Scores of the token after each of `tokens_BL`, and the memory for the next segment.

        Without a memory, nothing is remembered yet. The one given is left as it was. Where a row
        holds several texts, `past_BL` counts the tokens of its own text before each token: nothing
        before them is seen, in the segment or the memory. The last `again` tokens are not
        remembered: the next segment begins with them.
        """
        h_BLD, memory = self.hidden(tokens_BL, memory, past_BL, again)
        return self.head(h_BLD), memory

    def nats(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: Memory | None = None,
        past_BL: Tensor | None = None,
        again: int = 0,
    ) -> tuple[Tensor, Memory]:
        """-log p(target) of each of `targets_BL`, in nats and at least float32, and the memory."""
        h_BLD, memory = self.hidden(tokens_BL, memory, past_BL, again)
        return self.head.nats(h_BLD, targets_BL), memory

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: Memory | None = None,
        past_BL: Tensor | None = None,
        again: int = 0,
    ) -> tuple[Tensor, Memory]:
        """The last layer's states h_BLD, and the memory: what entered each layer, without gradient.

        Raises:
            ValueError: the memory has another number of rows than the tokens.
        """
        batch_size, tgt_len = tokens_BL.shape
        memory = self.empty_memory(batch_size) if memory is None else memory
        if memory.batch_size != batch_size:
            raise ValueError(f"memory has {memory.batch_size} rows, the tokens {batch_size}")
        reach_BL = memory.reach(tgt_len, past_BL)
        visible_BLS = memory.visible(reach_BL)
        terms_N = self.positions(memory.mem_len + tgt_len)

        h_BLD = self.drop(self.embedding(tokens_BL) * self.config.d_model**0.5)
        entered = []
        for layer, memory_BMD, terms in zip(self.layers, memory.h_NBMD, terms_N, strict=True):
            entered.append(h_BLD.detach().to(self.compute_dtype))
            h_BLD = layer(h_BLD, memory_BMD, terms, visible_BLS)
        memory = memory.remember(torch.stack(entered), reach_BL, again)
        return self.drop(self.final_norm(h_BLD)), memory

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> Memory:
        """Nothing remembered yet; `mem_len` may differ from the one trained with."""
        config = self.config
        mem_len = config.mem_len if mem_len is None else mem_len
        place = {"dtype": self.compute_dtype, "device": self.embedding.weight.device}
        return Memory.empty(config.n_layer, batch_size, mem_len, config.d_model, **place)

    @property
    def compute_dtype(self) -> torch.dtype:
        """What matrix products are computed in, and states remembered: autocast's, or the weights'.

        The residual sums of a network under autocast are wider; to remember them so would take
        twice the space, and the products narrow them anyway.
        """
        weight = self.embedding.weight
        kind = weight.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


class Layer(nn.Module):
    """Attention over memory and segment, then the feed-forward, each inside a residual sum."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.norm_before, self.norm_after = norms(config)
        self.attention = RelativeAttention(config)
        self.drop = nn.Dropout(config.dropout)
        self.feed_forward = FeedForward(config)

    def forward(
        self, h_BLD: Tensor, memory_BMD: Tensor, terms: DistanceTerms, visible_BLS: Tensor
    ) -> Tensor:
        seen_BSD = self.norm_before(join(memory_BMD, h_BLD))
        query_BLD = seen_BSD.narrow(1, memory_BMD.size(1), h_BLD.size(1))
        read_BLD = self.attention(query_BLD, seen_BSD, terms, visible_BLS)
        h_BLD = self.norm_after(h_BLD + self.drop(read_BLD))
        return self.feed_forward(h_BLD)


class FeedForward(nn.Module):
    """max(0, h W1 + b1) W2 + b2, position by position, inside a residual sum."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.norm_before, self.norm_after = norms(config)
        self.net = nn.Sequential(
            nn.Linear(config.d_model, config.inner_width),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.inner_width, config.d_model),
            nn.Dropout(config.dropout),
        )

    def forward(self, h_BLD: Tensor) -> Tensor:
        return self.norm_after(h_BLD + self.net(self.norm_before(h_BLD)))


class Head(nn.Module):
    """The softmax over the vocabulary; its matrix is the embedding's when tied."""

    def __init__(self, config: TransformerXLConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.out = nn.Linear(config.d_model, config.n_token)
        if config.tie_weight:
            self.out.weight = embedding.weight

    def forward(self, h_BLD: Tensor) -> Tensor:
        """Unnormalised log-probabilities, logits_BLV."""
        return self.out(h_BLD)

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """-log p of each target, nats_BL; half-precision logits are widened first."""
        logits_BLV = self(h_BLD)
        wide = torch.promote_types(logits_BLV.dtype, torch.float32)
        logits_BVL = logits_BLV.to(wide).transpose(1, 2)
        return F.cross_entropy(logits_BVL, targets_BL, reduction="none")


def norms(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """What stands before a part and after its residual sum: one of them normalises."""
    norm = nn.LayerNorm(config.d_model)
    return (norm, nn.Identity()) if config.norm == "pre" else (nn.Identity(), norm)


def output_norm(config: TransformerXLConfig) -> nn.Module:
    """What stands between the last layer and the softmax."""
    return nn.LayerNorm(config.d_model) if config.normalises_output else nn.Identity()


def initialise(model: TransformerXL, std: float) -> None:
    """The original's initial weights.

    matrices, embedding, u, v      normal(0, std)
    layer-normalisation weights    normal(1, std)
    every other bias               0
    """
    for module in model.modules():
        match module:
            case nn.Linear() | nn.Embedding():
                nn.init.normal_(module.weight, 0.0, std)
            case nn.LayerNorm():
                nn.init.normal_(module.weight, 1.0, std)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith(("u_NHK", "v_NHK")):
            nn.init.normal_(parameter, 0.0, std)
