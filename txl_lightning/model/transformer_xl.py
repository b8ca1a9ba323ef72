"""Transformer-XL (Dai et al. 2019), top-down. Read this first.

    logits_BLV, memory = model(tokens_BL, memory)

B rows read in parallel   L tokens in the segment   M remembered   S = M + L seen
D width   F inner width   V vocabulary   N layers   (H heads and K: attention.py)
"""

import torch
from torch import Tensor, nn

from .adaptive import AdaptiveEmbedding, AdaptiveSoftmax, downs
from .attention import RelativeAttention
from .cache import AnyMemory, CachedLayer, KeyValueCache
from .config import EvalSameLength, TransformerXLConfig
from .dropout import dropout
from .initial import initialise
from .kernels.inference import Band, Prepared, Ragged
from .memory import Memory, Remembered
from .positions import SCHEMES, DistanceTerms
from .softmax import Softmax


class TransformerXL(nn.Module):
    """A language model that reads a text segment by segment and remembers (Section 3)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding, head = vocabulary(config)
        self.positions = SCHEMES[config.positions](config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.final_norm = output_norm(config)
        self.head = head
        self.recurrence = RECURRENCES[config.recurrence]
        self.drop = dropout(config)
        initialise(self, config)

    def forward(
        self,
        tokens_BL: Tensor,
        memory: AnyMemory | None = None,
        past_BL: Tensor | None = None,
        again: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
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
        memory: AnyMemory | None = None,
        past_BL: Tensor | None = None,
        again: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        """-log p(target) of each of `targets_BL`, in nats and at least float32, and the memory.

        The targets are those of the last tokens, if there are fewer.
        """
        h_BLD, memory = self.hidden(tokens_BL, memory, past_BL, again)
        return self.head.nats(h_BLD[:, -targets_BL.size(1) :], targets_BL), memory

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: AnyMemory | None = None,
        past_BL: Tensor | None = None,
        again: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        """The last layer's states h_BLD, and the memory of what each layer reads, without gradient.

        Raises:
            ValueError: the memory has another number of rows than the tokens.
        """
        batch_size, tgt_len = tokens_BL.shape
        assert 0 <= again <= tgt_len
        memory = self.empty_memory(batch_size) if memory is None else memory
        if memory.batch_size != batch_size:
            raise ValueError(f"memory has {memory.batch_size} rows, the tokens {batch_size}")
        memory = memory.ready(tgt_len, self.positions)
        reach_BL = memory.reach(tgt_len, past_BL)
        visible_BLS = memory.visible(reach_BL)
        terms_N = memory.terms(tgt_len, self.positions)

        h_BLD = self.drop(self.embedding(tokens_BL) * self.config.d_model**0.5)
        states = [h_BLD]
        for layer, past, terms in zip(self.layers, memory.layers(tgt_len), terms_N, strict=True):
            h_BLD = layer(h_BLD, past, terms, visible_BLS)
            states.append(h_BLD)
        dtype = self.compute_dtype
        kept = [state.to(dtype) for state in states[self.recurrence]]
        return self.drop(self.final_norm(h_BLD)), memory.remember(kept, reach_BL, again)

    def empty_memory(
        self,
        batch_size: int,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        same_length: EvalSameLength = None,
    ) -> Memory:
        """Nothing remembered yet; how far back is read may differ from how it was in training."""
        config = self.config
        mem_len = config.mem_len if mem_len is None else mem_len
        place = {"dtype": self.compute_dtype, "device": self.probe.device}
        memory = Memory.empty(config.n_layer, batch_size, mem_len, config.d_model, **place)
        clamp_len = config.clamp_len if clamp_len is None else clamp_len
        return memory.read_with(clamp_len, config.seen(same_length))

    def empty_cache(
        self,
        batch_size: int,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        same_length: EvalSameLength = None,
    ) -> AnyMemory:
        """`empty_memory` for evaluation: keys and values are kept, unless a later segment would
        make others of the same states (absolute positions, recurrence within a layer)."""
        config = self.config
        lengths = (mem_len, clamp_len, same_length)
        if config.is_absolute or config.recurrence == "same":
            return self.empty_memory(batch_size, *lengths)
        mem_len = config.mem_len if mem_len is None else mem_len
        shape = (config.n_layer, batch_size, config.n_head, config.head_width)
        place = {"dtype": self.compute_dtype, "device": self.probe.device}
        cache = KeyValueCache.empty(shape, mem_len, **place)
        clamp_len = config.clamp_len if clamp_len is None else clamp_len
        return cache.read_with(clamp_len, config.seen(same_length))

    @property
    def probe(self) -> Tensor:
        """A weight that every network has, to ask for its device and precision."""
        return self.layers[0].attention.q_net.weight

    @property
    def compute_dtype(self) -> torch.dtype:
        """What matrix products are computed in, and states remembered: autocast's, or the weights'.

        The residual sums of a network under autocast are wider; to remember them so would take
        twice the space, and the products narrow them anyway.
        """
        kind = self.probe.device.type
        return (
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.probe.dtype
        )


Past = Remembered | CachedLayer
"""What a layer reads of the segments before."""

Terms = DistanceTerms | Prepared
"""What distance adds, as the layer's kernel reads it."""


class Layer(nn.Module):
    """Attention over memory and segment, then the feed-forward, each inside a residual sum."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.norm_before, self.norm_after = norms(config)
        self.query = QUERIES[config.norm]
        self.attention = RelativeAttention(config)
        self.drop = dropout(config)
        self.feed_forward = FeedForward(config)

    def forward(
        self, h_BLD: Tensor, past: Past, terms: Terms, visible: Tensor | Band | Ragged
    ) -> Tensor:
        project = self.attention.keys_and_values
        h_BLD, normed_BLD, *seen = past.seen(h_BLD, terms, self.norm_before, project)
        query_BLD = self.query(h_BLD, normed_BLD)
        attend = past.kernel(self.attention.attend)
        read_BLD = self.attention(query_BLD, *seen, terms, visible, attend)
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
            dropout(config),
            nn.Linear(config.inner_width, config.d_model),
            dropout(config),
        )

    def forward(self, h_BLD: Tensor) -> Tensor:
        return self.norm_after(h_BLD + self.net(self.norm_before(h_BLD)))


def vocabulary(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """Embedding and softmax: in clusters, or plain with embeddings as wide as the model or not."""
    if config.cutoffs:
        adaptive = AdaptiveEmbedding(config)
        return adaptive, AdaptiveSoftmax(config, adaptive)
    if config.has_projections:
        narrow = AdaptiveEmbedding(config)
        return narrow, Softmax(config, narrow.tables[0], downs(config, narrow)[0])
    table = nn.Embedding(config.n_token, config.d_model)
    return table, Softmax(config, table, nn.Identity())


def norms(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """What stands before a part and after its residual sum: one of them normalises."""
    norm = nn.LayerNorm(config.d_model, config.norm_eps)
    return (nn.Identity(), norm) if config.norm == "post" else (norm, nn.Identity())


def as_they_are(h_BLD: Tensor, normed_BLD: Tensor) -> Tensor:
    """The segment's states."""
    return h_BLD


def normed(h_BLD: Tensor, normed_BLD: Tensor) -> Tensor:
    """The segment's states, normalised."""
    return normed_BLD


QUERIES = {"post": as_they_are, "pre": normed, "pre_keys": as_they_are}
"""What queries are made of."""


def output_norm(config: TransformerXLConfig) -> nn.Module:
    """What stands between the last layer and the softmax."""
    if not config.normalises_output:
        return nn.Identity()
    return nn.LayerNorm(config.d_model, config.norm_eps)


RECURRENCES = {"below": slice(None, -1), "same": slice(1, None)}
"""What layers 1 to N read of the past, among the states that enter layer 1 and leave each."""
