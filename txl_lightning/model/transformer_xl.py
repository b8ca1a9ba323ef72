"""Transformer-XL (Dai et al. 2019), top-down. Read this first.

    logits_BLV, memory = model(tokens_BL, memory)

Layer n, for the states h = h^(n-1) of a segment and the memory m = m^(n-1) (Sections 3.2, 3.3):

    h~       = [SG(m) o h]                                            Layer
    q, k, v  = h W_q, h~ W_k, h~ W_v                                  RelativeAttention
    A_ij     = q_i.k_j (a) + q_i.r_(i-j) (b) + u.k_j (c) + v.r_(i-j) (d)    kernels/reference.py
    a        = Masked-Softmax(A / sqrt(K)) v                          Memory.attention_mask
    o        = LayerNorm(h + a W_o)                                   Layer
    h^n      = LayerNorm(o + max(0, o W_1 + b_1) W_2 + b_2)           FeedForward
    m^(n-1) <- the last M states of h~                                Memory.update

r_(i-j) = R_(i-j) W_R, u and v, or the equivalents of other schemes, are in positions.py.

B rows read in parallel   L tokens in the segment   M in memory   S = M + L visible
D width   H heads   K head width   V vocabulary   N layers
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import require
from .adaptive import as_indices, embedding_and_head
from .config import AS_TRAINED, EvalLengths, TransformerXLConfig, is_transformer_xl
from .kernels import KERNELS
from .memory import Memory, require_memory
from .parts import (
    ConcatenatedLinear,
    LayerNorm,
    Linear,
    PackedLinear,
    VariationalDropout,
    eval_mode,
    has_global_hooks,
    has_hooks,
    initialize_vector_math,
    is_changed,
    layer_norm,
    make_dropout,
    make_norms,
)
from .positions import RELATIVE, DistanceTerms, find_scheme
from .precision import call, call_with_weights_in

INITIALIZED_LIKE_WEIGHTS = ("u_NHK", "v_NHK", "r_NCHK", "r_NCK", "p_NCD")
"""Parameters of position schemes, except biases per distance."""
PROJECTIONS = ("embedding.projections.", "head.down")
"""Name prefixes of the projections from and to the width of embeddings."""


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
    call_layer = staticmethod(call_with_weights_in)
    run_layer = staticmethod(call)

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
        they have 0 nats and no gradient. Other arguments are as in `hidden`.
        """
        h_BLD, memory = self.hidden(tokens_BL, *inputs, **named)
        return self.head.nats(h_BLD[:, -targets_BL.size(1) :], targets_BL), memory

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: Memory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, Memory]:
        """Return the states h^N_BLD of the last layer, and the memory for the next segment.

        Args:
            memory: the memory after the previous segment, not modified; by default an empty one.
            doc_pos_BL: number of tokens of the same document before each token; attention stops
                at the document's beginning. By default a row is one document.
            n_reread: last tokens left out of memory: the next segment reads them again (ext_len).

        Raises:
            ValueError: the memory has another number of rows, or the sizes of another network.
        """
        batch_size, tgt_len = tokens_BL.shape
        memory = self.empty_memory(batch_size) if memory is None else memory
        require_memory(memory, self.config, tokens_BL, n_reread)
        mask_BLS = memory.attention_mask(tgt_len, doc_pos_BL)
        dtype = self.compute_dtype
        distance_T = memory.distances(tgt_len)
        h_BLD = self.drop(self.embedding(as_indices(tokens_BL)) * self.config.d_model**0.5).to(
            dtype
        )
        states = [h_BLD]
        with torch.autocast(self.device.type, enabled=False):
            terms_N = call_with_weights_in(dtype, self.positions, distance_T)
            for layer, memory_BMD, terms in zip(self.layers, memory.h_NBMD, terms_N, strict=True):
                inputs = h_BLD, memory_BMD.to(dtype), terms.to(dtype), mask_BLS
                # Outside of autocast, layers of FSDP2 may still compute in lower precision.
                h_BLD = self.call_layer(dtype, layer, *inputs, call=self.run_layer).to(dtype)
                states.append(h_BLD)
        # Memory is of the layer below in the paper, of the same layer in Ding et al. 2021.
        cached = states[1:] if self.config.memory_source == "same_layer" else states[:-1]
        return self.drop(self.final_norm(h_BLD)), memory.update(cached, mask_BLS, n_reread)

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> Memory:
        """Return an empty memory, with the lengths of training by default."""
        require(batch_size >= 0, "batch_size", batch_size, "0 or more")
        use = (lengths or AS_TRAINED).resolve(self.config)
        shape = (self.config.n_layer, batch_size, use.mem_len, self.config.d_model)
        h_NBMD = torch.zeros(shape, dtype=self.compute_dtype, device=self.device)
        filled_B = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        return Memory(h_NBMD, filled_B, use.clamp_len, use.same_length)

    @property
    def reads_states(self) -> bool:
        """True if calls and losses are those of `hidden` and `head`; a derived class may differ."""
        kind = type(self)
        methods = kind.forward, kind.loss
        if methods != (TransformerXL.forward, TransformerXL.loss) or is_changed(self):
            return False
        return "loss" not in vars(self)

    @property
    def device(self) -> torch.device:
        return next(self.layers[0].parameters()).device

    @property
    def compute_dtype(self) -> torch.dtype:
        """Precision of matrix products and of the memory: autocast's, or the weights'."""
        # Autocast keeps the states in float32, but the products of the next segment convert them.
        if torch.is_autocast_enabled(self.device.type):
            return torch.get_autocast_dtype(self.device.type)
        return next(self.layers[0].parameters()).dtype


class Layer(nn.Module):
    """h~ = [SG(m) o h];  o = LayerNorm(h + Attention(h, h~));  FeedForward(o)  (Section 3.3)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.norm_before, self.norm_after = make_norms(config)
        self.norms_queries = config.norm == "pre"
        self.attention = RelativeAttention(config)
        self.drop = make_dropout(config)
        self.feed_forward = FeedForward(config)

    def forward(
        self, h_BLD: Tensor, memory_BMD: Tensor, terms: DistanceTerms, mask_BLS: Tensor
    ) -> Tensor:
        memory_BMD, h_BLD = terms.add_positions(memory_BMD, h_BLD)  # absolute schemes only
        # h~ = [SG(m) o h], in two parts; SG, the stop-gradient, is applied in Memory.update.
        context = self.norm_before(memory_BMD), self.norm_before(h_BLD)
        query_BLD = context[1] if self.norms_queries else h_BLD
        attention_BLD = self.attention(query_BLD, context, terms, mask_BLS)
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
        self.kv_net = ConcatenatedLinear(D, 2 * inner, bias=False)
        self.o_net = Linear(inner, D, bias=False)

    def forward(
        self,
        query_BLD: Tensor,
        context: tuple[Tensor, Tensor],
        terms: DistanceTerms,
        mask_BLS: Tensor,
    ) -> Tensor:
        q_BLHK = self.q_net(query_BLD).unflatten(-1, self.heads)
        kv_BS2HK = self.kv_net(*context).unflatten(-1, (2, *self.heads))
        dropatt = self.dropatt if self.training else 0.0
        # Masked softmax of (a) + (b) + (c) + (d): `terms` has r, u and v.
        out_BLHK = self.attend(q_BLHK, kv_BS2HK, terms, mask_BLS, dropatt)
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


NORMS = LayerNorm, nn.LayerNorm, nn.Identity
DROPOUTS = nn.Dropout, VariationalDropout, nn.Identity
LINEAR = Linear, ConcatenatedLinear, PackedLinear
OURS = *NORMS, *DROPOUTS, *LINEAR, *RELATIVE, nn.ModuleList, TransformerXL, Layer, RelativeAttention
FORWARDS = {kind: kind.forward for kind in OURS}
HIDDEN = TransformerXL.hidden
ATTEND = frozenset(KERNELS.values())


def has_constant_keys(net: TransformerXL) -> bool:
    """Return True if the keys of a state never change, and the network computes as written here.

    `CachedReader` then gives the same. What it does not call, or with other inputs, is of exactly
    these classes, without hooks: anything else is read by the network itself, slower.
    """
    is_ours = is_transformer_xl(net) and is_as_written(net, TransformerXL)
    is_ours = is_ours and type(net).hidden is HIDDEN and "hidden" not in vars(net)
    if not is_ours or has_global_hooks() or net.config.memory_source == "same_layer":
        return False
    is_called_here = calls_layers_plainly(net) and is_as_written(net.drop, *DROPOUTS)
    return is_called_here and has_known_terms(net.positions) and all(map(is_known, net.layers))


def is_as_written(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return True if a module is of exactly such a class, and a call does what is written there."""
    kind = type(module)
    is_kind = kind in kinds and kind.forward is FORWARDS[kind]
    return is_kind and "forward" not in vars(module) and not has_hooks(module)


def is_known(layer: nn.Module) -> bool:
    if not (is_as_written(layer, Layer) and is_as_written(layer.attention, RelativeAttention)):
        return False
    attention = layer.attention
    is_plain = attention.attend in ATTEND and is_as_written(attention.kv_net, *LINEAR)
    is_plain = is_plain and is_as_written(layer.norm_before, *NORMS)
    return is_plain and is_as_written(layer.drop, *DROPOUTS)


def has_known_terms(positions: nn.Module) -> bool:
    inner = [*RELATIVE, *DROPOUTS, Linear, nn.ModuleList]
    return type(positions) in RELATIVE and all(
        is_as_written(m, *inner) for m in positions.modules()
    )


def calls_layers_plainly(net: TransformerXL) -> bool:
    """Return True if layers are called as here, perhaps recomputed or compiled, which is equal."""
    call_layer = net.call_layer
    is_recomputed = isinstance(call_layer, partial) and call_layer.func is checkpoint
    called = call_layer.args if is_recomputed else (call_layer,)
    # Private: no public function tells what was compiled.
    run_layer = getattr(net.run_layer, "_torchdynamo_orig_callable", net.run_layer)
    return called == (call_with_weights_in,) and run_layer is call


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
