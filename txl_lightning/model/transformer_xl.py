"""Transformer-XL (Dai et al. 2019), top-down. Read this first of `model/`.

    logits_BLV, memory = model(tokens_BL, memory)

Layer n, for the states h = h^(n-1) of a segment and the memory m = m^(n-1) (Sections 3.2, 3.3):

    h~       = [SG(m) o h]                                            Layer
    q, k, v  = h W_q, h~ W_k, h~ W_v                                  RelativeAttention
    A_ij     = q_i.k_j (a) + q_i.r_(i-j) (b) + u.k_j (c) + v.r_(i-j) (d)    kernels/reference.py
    a        = Masked-Softmax(A / sqrt(K)) v                          Memory.attention_mask
    o        = LayerNorm(h + a W_o)                                   Layer
    h^n      = LayerNorm(o + max(0, o W_1 + b_1) W_2 + b_2)           FeedForward
    m^(n-1) <- the last M states of h~                                Memory.update

r_(i-j) = R_(i-j) W_R, u and v, or the equivalents of other schemes, are in positions.py. In (d), v
is a vector of the scheme, not the values.

B rows read in parallel   L tokens in the segment   M in memory   S = M + L visible
D width   H heads   K head width   V vocabulary   N layers
X states whose keys and values are computed: S, or the L new ones where those of others are kept
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import require
from .adaptive import PlainSoftmax, as_indices, embedding_and_head
from .cache import KeyValueCache
from .config import AS_TRAINED, EvalLengths, TransformerXLConfig
from .kernels import KERNELS
from .memory import Memory, Past, require_memory
from .parts import (
    Linear,
    eval_mode,
    initialize_vector_math,
    is_changed,
    join,
    layer_norm,
    make_dropout,
    make_norms,
)
from .positions import RELATIVE, find_scheme
from .precision import cast_together, compute_dtype

INITIALIZED_LIKE_WEIGHTS = ("u_NHK", "v_NHK", "r_NCHK", "r_NCK", "p_NCD")
"""Parameters of position schemes, except biases per distance."""
PROJECTIONS = ("embedding.projections.", "head.down")
"""Name prefixes of the projections from and to the width of embeddings."""


def call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def run_layer(layer: nn.Module, h_BLD: Tensor, past: Past) -> Tensor:
    if not torch.is_autocast_enabled(h_BLD.device.type):
        return layer(h_BLD, past)
    with cast_together(layer, h_BLD.dtype):
        return layer(h_BLD, past)


class TransformerXL(nn.Module):
    """A language model that reads text in segments, with a memory of previous ones (Section 3).

    >>> net = TransformerXL(TransformerXLConfig(n_token=256, d_model=8, mem_len=16)).eval()
    >>> text_BT = torch.tensor([[*b"To be, or not to be, that is the question"]])
    >>> logits_BLV, memory = net(text_BT[:, :9])
    >>> logits_BLV.shape, memory.filled_B
    (torch.Size([1, 9, 256]), tensor([9]))
    >>> nats, memory = [], None
    >>> for start in range(0, 40, 8):
    ...     inputs_BL, targets_BL = text_BT[:, start : start + 8], text_BT[:, start + 1 : start + 9]
    ...     nats_BL, memory = net.loss(inputs_BL, targets_BL, memory)
    ...     nats.append(nats_BL.detach())
    >>> f"{torch.cat(nats, 1).mean() / torch.tensor(2.0).log():.0f} bits per byte"
    '8 bits per byte'
    """

    # Training may replace the first by one that recomputes, and the second by a compiled one.
    call_layer = staticmethod(call)
    run_layer = staticmethod(run_layer)

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        initialize_vector_math()
        self.config = config
        self.embedding, head = embedding_and_head(config)
        self.positions = find_scheme(config.positions)(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.final_norm = layer_norm(config) if config.has_final_norm else nn.Identity()
        self.head = head
        self.drop = make_dropout(config)
        initialize_weights(self, config)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # An unpickled network may be the first of its process.
        initialize_vector_math()
        super().__setstate__(state)

    def forward(self, tokens_BL: Tensor, *inputs: Any, **named: Any) -> tuple[Tensor, Memory]:
        """Return logits_BLV of the token after each, and the next memory; inputs as in `hidden`."""
        h_BLD, memory = self.hidden(tokens_BL, *inputs, **named)
        return self.head(h_BLD), memory

    def loss(
        self, tokens_BL: Tensor, targets_BL: Tensor, *inputs: Any, **named: Any
    ) -> tuple[Tensor, Memory]:
        """Return -log p(target) in nats_BL, at least float32, and the memory for the next segment.

        Targets are given for all tokens, or for the last ones; targets of -100 are not scored:
        they have 0 nats and no gradient. Other arguments are as in `hidden`. Hooks on the network
        itself act, as the nats are then those of the logits that a call returns.
        """
        last = slice(-targets_BL.size(1), None)
        if self.has_own_calls:
            logits_BLV, memory = self(tokens_BL, *inputs, **named)
            return PlainSoftmax().nats(logits_BLV[:, last], targets_BL), memory
        h_BLD, memory = self.hidden(tokens_BL, *inputs, **named)
        return self.head.nats(h_BLD[:, last], targets_BL), memory

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: Memory | KeyValueCache | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, Memory | KeyValueCache]:
        """Return the states h^N_BLD of the last layer, and the memory for the next segment.

        Args:
            memory: the memory after the previous segment, not modified; by default an empty one.
            doc_pos_BL: number of tokens of the same document before each token; attention stops
                at the document's beginning. By default a row is one document.
            n_reread: last tokens left out of memory: the next segment reads them again (ext_len).

        Raises:
            ValueError: the memory has another number of rows, or the sizes of another network; or
                keys and values, and gradients are enabled, or the network is in training mode.
        """
        batch_size, tgt_len = tokens_BL.shape
        memory = self.empty_memory(batch_size) if memory is None else memory
        require_memory(memory, self.config, tokens_BL, n_reread)
        dtype = self.compute_dtype
        h_BLD = self.drop(self.embedding(as_indices(tokens_BL)) * self.config.d_model**0.5)
        h_BLD = h_BLD.to(dtype)
        reading = memory.begin(self, tgt_len, doc_pos_BL)
        states = []
        for layer, past in zip(self.layers, reading.past_N, strict=True):
            past.read_BLD = h_BLD
            # Outside of autocast, layers of FSDP2 may still compute in lower precision.
            h_BLD = self.call_layer(self.run_layer, layer, h_BLD, past).to(dtype)
            states.append(h_BLD)
        # Memory is of the layer below in the paper, of the same layer in Ding et al. 2021.
        if self.config.memory_source == "layer_below":
            states = [past.read_BLD.to(dtype) for past in reading.past_N]
        return self.drop(self.final_norm(h_BLD)), reading.end(states, n_reread=n_reread)

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> Memory:
        """Return an empty memory, with the lengths of training by default."""
        require(batch_size >= 0, "batch_size", batch_size, "0 or more")
        mem_len, *limits = (lengths or AS_TRAINED).resolve(self.config)
        shape = (self.config.n_layer, batch_size, mem_len, self.config.d_model)
        h_NBMD = torch.zeros(shape, dtype=self.compute_dtype, device=self.device)
        filled_B = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        return Memory(h_NBMD, filled_B, *limits)

    def empty_cache(
        self, batch_size: int, lengths: EvalLengths | None = None
    ) -> Memory | KeyValueCache:
        """Return an empty memory of keys and values, or of states, where keys may vary.

        The keys of a state vary where its position does, or where its own layer reads it.
        """
        require(batch_size >= 0, "batch_size", batch_size, "0 or more")
        if self.config.memory_source == "same_layer" or is_absolute(self):
            return self.empty_memory(batch_size, lengths)
        sizes = {name: getattr(self.config, name) for name in ("n_layer", "n_head", "head_width")}
        filled_B = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        return KeyValueCache(sizes, filled_B, *(lengths or AS_TRAINED).resolve(self.config))

    @property
    def has_own_calls(self) -> bool:
        """True if a derived class, a patch or a hook may return other logits than the head's."""
        return type(self).forward is not TransformerXL.forward or is_changed(self)

    @property
    def reads_states(self) -> bool:
        """True if calls and losses are those of `hidden` and `head`; a derived class may differ."""
        has_own_loss = type(self).loss is not TransformerXL.loss or "loss" in vars(self)
        return not (self.has_own_calls or has_own_loss)

    @property
    def device(self) -> torch.device:
        return next(self.layers[0].parameters()).device

    @property
    def compute_dtype(self) -> torch.dtype:
        """Precision of matrix products and of the memory: autocast's, or the weights'."""
        return compute_dtype(next(self.layers[0].parameters()))


class Layer(nn.Module):
    """h~ = [SG(m) o h];  o = LayerNorm(h + Attention(h, h~));  FeedForward(o)  (Section 3.3)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.norm_before, self.norm_after = make_norms(config)
        self.norms_queries = config.norm == "pre"
        self.attention = RelativeAttention(config)
        self.drop = make_dropout(config)
        self.feed_forward = FeedForward(config)

    def forward(self, h_BLD: Tensor, past: Past) -> Tensor:
        # h~ = [SG(m) o h], in two parts; where keys and values are kept, there is no m.
        # SG, the stop-gradient, is applied in Memory.update.
        *memory, h_BLD = past.states(h_BLD)
        context = [self.norm_before(part) for part in (*memory, h_BLD)]
        query_BLD = context[-1] if self.norms_queries else h_BLD
        attention_BLD = self.attention(query_BLD, join(*context), past)
        return self.feed_forward(self.norm_after(h_BLD + self.drop(attention_BLD)))


class RelativeAttention(nn.Module):
    """Multi-head attention whose scores depend on distance, not position (Section 3.3)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        D = config.d_model
        inner = config.n_head * config.head_width
        self.heads = (config.n_head, config.head_width)
        self.dropatt = config.dropatt
        self.attend = KERNELS[config.kernel]
        self.q_net = Linear(D, inner, bias=False)
        self.kv_net = Linear(D, 2 * inner, bias=False)
        self.o_net = Linear(inner, D, bias=False)

    def forward(self, query_BLD: Tensor, context_BXD: Tensor, past: Past) -> Tensor:
        q_BLHK = self.q_net(query_BLD).unflatten(-1, self.heads)
        kv_BX2HK = self.kv_net(context_BXD).unflatten(-1, (2, *self.heads))
        # Of all S visible states: those of the memory and of the segment.
        kv = past.extend(kv_BX2HK)
        # Masked softmax of (a) + (b) + (c) + (d): `terms` has r, u and v.
        terms = past.terms.to(q_BLHK.dtype)
        dropatt = self.dropatt if self.training else 0.0
        attend = past.choose_kernel(self.attend)
        out_BLHK = attend(q_BLHK, kv, terms, past.mask, dropatt)
        return self.o_net(out_BLHK.flatten(-2))


class FeedForward(nn.Module):
    """max(0, h W_1 + b_1) W_2 + b_2, position by position, inside a residual sum."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.norm_before, self.norm_after = make_norms(config)
        self.net = nn.Sequential(
            Linear(config.d_model, config.inner_width),
            nn.ReLU(),
            make_dropout(config),
            Linear(config.inner_width, config.d_model),
            make_dropout(config),
        )

    def forward(self, h_BLD: Tensor) -> Tensor:
        return self.norm_after(h_BLD + self.net(self.norm_before(h_BLD)))


def initialize_weights(model: nn.Module, config: TransformerXLConfig) -> None:
    """Initialize every weight of a network at random, in place, as the original does.

    matrices, embeddings, u, v, learned positions     init: normal(0, init_std), or uniform
    projections of embeddings                         normal(0, proj_init_std)
    layer-normalization weights                       normal(1, init_std)
    biases                                            0
    """

    def draw(weight: nn.Parameter) -> None:
        if config.init == "uniform":
            nn.init.uniform_(weight, -config.init_range, config.init_range)
        else:
            nn.init.normal_(weight, 0.0, config.init_std)

    for module in model.modules():
        match module:
            case nn.Linear() | nn.Embedding():
                draw(module.weight)
            case nn.LayerNorm():
                nn.init.normal_(module.weight, 1.0, config.init_std)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith(INITIALIZED_LIKE_WEIGHTS):
            draw(parameter)
    # A tied weight is drawn twice: a seed must keep giving the same weights.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name.startswith(PROJECTIONS):
            nn.init.normal_(parameter, 0.0, config.proj_init_std)


TransformerXLConfig.network = TransformerXL


@torch.no_grad()
def is_absolute(net: nn.Module) -> bool:
    """Return True if the position of a state changes from segment to segment."""
    if not isinstance(net, TransformerXL):
        return getattr(net.config, "is_absolute", False)
    if type(net.positions) in RELATIVE:
        return False
    with eval_mode(net.positions):
        terms_N = net.positions(torch.tensor([2, 1, 0], device=net.device))
    return any(terms.p_SD is not None for terms in terms_N)
