"""Configuration of the network, with the names of the original code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, get_args

from torch import nn

from ..errors import convert_fields, require, to_plain
from ..imports import OWN, import_class, is_class_path, name_class

CLASS = "class_path"
"""Key of the settings that names the class of a config other than TransformerXLConfig."""
SameLength = Literal["mem_len", "mem_len+1"] | None
EvalSameLength = Literal["mem_len", "mem_len+1", "all"] | None
MAX_LAYERS = 10_000  # more than any real network has; building even this many takes only seconds
Positions = Literal["sinusoidal", "learned", "shaw", "absolute_sinusoidal", "absolute_learned"]
LEARNED = ("learned", "shaw", "absolute_learned")
"""Position schemes with a row for each distance up to clamp_len."""
REMOVED_KERNELS = ("matmul",)
"""Kernels that the settings of a checkpoint may name; others compute the same."""


class NetworkConfig(Protocol):
    """Settings of a network, as a frozen dataclass with plain values and a default for each."""

    n_token: int
    """Vocabulary size V. The command line takes it from the text."""
    mem_len: int
    """Length of the memory in training, in tokens or states; 0: nothing is remembered."""

    def build(self) -> nn.Module:
        """Return a new network. On the meta device, for its shapes, it has no values to read."""


@dataclass(frozen=True)
class TransformerXLConfig:
    """Sizes and parts of a Transformer-XL (Dai et al. 2019, Section 3), validated when created.

    >>> TransformerXLConfig(n_layer=2, d_model=64, mem_len=32).inner_width
    256

    Args:
        n_token: Vocabulary size V. The command line takes it from the corpus.
        d_embed: Width of embeddings, projected to d_model; default d_model.
        cutoffs: First id of each cluster except the first, with ids sorted by frequency; default
            none.
        div_val: Factor by which embeddings get narrower from each cluster to the next.
        tie_projs: For each cluster, share the embedding's projection with the softmax; default
            none.
        n_layer: Number of layers N.
        n_head: Attention heads H in each layer.
        d_model: Width D of the hidden states; even, because each frequency has a sine and a cosine.
        d_head: Width K of a head; default d_model / n_head.
        d_inner: Inner width F of the feed-forward layer; default 4 * d_model.
        mem_len: Memory length M in training: cached hidden states per layer; 0 is a plain
            Transformer.
        memory_source: Layer whose states are cached: the layer below (paper) or the same one (Ding
            et al. 2021).
        same_length: States that each query attends to, including itself: mem_len (original PyTorch
            code) or mem_len+1 (TensorFlow, NVIDIA); default, and without memory, all.
        clamp_len: Largest relative distance; larger ones are clamped. Required for learned
            positions.
        norm: Layer normalization after each residual sum (post, paper) or before each sublayer
            (pre); pre_kv: pre, except for queries (the original with absolute positions).
        final_norm: Normalize the last layer's output; default true unless norm is post.
        norm_eps: Epsilon added to the variance in layer normalization.
        positions: Position scheme: relative (Section 3.3; learned, as in labml; Shaw et al. 2018),
            or absolute, added to the states (Vaswani et al. 2017; Al-Rfou et al. 2019); or a class
            of yours.
        kernel: Implementation of attention; all give the same result, and auto is the fastest on
            this machine.
        tie_weight: Share the softmax weights with the embedding.
        untie_r: Use separate u and v in every layer; otherwise all layers share one pair.
        dropout: Probability of dropping hidden units.
        dropout_type: Dropout mask per token, or the same for a row's whole segment (Gal and
            Ghahramani 2016).
        dropatt: Probability of dropping attention weights.
        loss_chunk_size: Tokens whose logits are in memory at once, recomputed for gradients;
            default all.
        init: Initial weights: normal with init_std, or uniform from -init_range to init_range.
        init_std: Standard deviation of the initial weights.
        init_range: Largest initial weight with init uniform.
        proj_init_std: Standard deviation of the initial projections of embeddings.
    """

    n_token: int = 256
    d_embed: int | None = None
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    tie_projs: tuple[bool, ...] = ()
    n_layer: int = 4
    n_head: int = 4
    d_model: int = 128
    d_head: int | None = None
    d_inner: int | None = None
    mem_len: int = 128
    memory_source: Literal["layer_below", "same_layer"] = "layer_below"
    same_length: SameLength = None
    clamp_len: int | None = None
    norm: Literal["post", "pre", "pre_kv"] = "post"
    final_norm: bool | None = None
    norm_eps: float = 1e-5
    positions: Positions | str = "sinusoidal"
    kernel: Literal["auto", "reference", "per_head", "sdpa"] = "auto"
    tie_weight: bool = True
    untie_r: bool = False
    dropout: float = 0.0
    dropout_type: Literal["standard", "variational"] = "standard"
    dropatt: float = 0.0
    loss_chunk_size: int | None = None
    init: Literal["normal", "uniform"] = "normal"
    init_std: float = 0.02
    init_range: float = 0.1
    proj_init_std: float = 0.01

    def __post_init__(self) -> None:
        convert_fields(self)
        for is_possible, field, expected in self._checks():
            value = getattr(self, field)
            text = list(value) if isinstance(value, tuple) else value
            require(is_possible, field, text, expected)

    def _checks(self) -> Iterator[tuple[bool, str, str]]:
        """Yield checks, simple ones first: is the value valid, the field, the expected values."""
        for field in ("n_token", "n_layer", "n_head", "d_model", "div_val"):
            yield getattr(self, field) >= 1, field, "at least 1"
        yield self.n_layer <= MAX_LAYERS, "n_layer", f"at most {MAX_LAYERS:,}"
        for field in ("d_embed", "d_head", "d_inner", "loss_chunk_size"):
            yield is_at_least(1, getattr(self, field)), field, "at least 1, or null"
        for field in ("norm_eps", "init_std", "init_range", "proj_init_std"):
            yield getattr(self, field) > 0, field, "greater than 0"
        for field in ("dropout", "dropatt"):
            yield 0 <= getattr(self, field) < 1, field, "at least 0 and less than 1"
        yield self.mem_len >= 0, "mem_len", "0 (no memory) or more"
        is_learned = self.positions in LEARNED
        yield is_learned or self.d_model % 2 == 0, "d_model", "an even number, for sinusoids"
        divides = self.d_head is not None or self.d_model % self.n_head == 0
        yield divides, "d_model", f"a multiple of n_head ({self.n_head}), unless d_head is given"
        clamp_len = self.clamp_len
        schemes = get_args(Positions)
        is_scheme = self.positions in schemes or is_class_path(self.positions)
        expected = f"{', '.join(schemes)}, or a class such as my_package.MyScheme"
        yield is_scheme, "positions", expected
        needed = f"the largest distance, because positions are {self.positions}"
        yield clamp_len is not None or not is_learned, "clamp_len", needed
        # A table may have a single row, for distance 0.
        least, null = (0, "") if is_learned else (1, ", or null")
        yield is_at_least(least, clamp_len), "clamp_len", f"at least {least}{null}"
        # The network checks that the last cluster has tokens: n_token may be set later.
        starts = (0, *self.cutoffs)
        width = self.embed_width
        yield all(a < b for a, b in pairwise(starts)), "cutoffs", "increasing, greater than 0"
        each = f"one for each of {len(starts)} clusters, or none"
        yield len(self.tie_projs) in (0, len(starts)), "tie_projs", each
        yield self.div_val == 1 or bool(self.cutoffs), "div_val", "1 without cutoffs"
        narrow = f"small enough for the last cluster to have a width (the first has {width})"
        yield width >= self.div_val ** len(self.cutoffs), "div_val", narrow

    # Set in transformer_xl.py, which imports this file: a network knows its config.
    network = None

    def build(self) -> nn.Module:
        """Return a new TransformerXL."""
        return self.network(self)

    @property
    def is_absolute(self) -> bool:
        """True if the position of a cached state changes from segment to segment."""
        return self.positions.startswith("absolute")

    @property
    def n_distance(self) -> int:
        """Rows C of a learned table: distances 0 to clamp_len."""
        assert self.clamp_len is not None
        return self.clamp_len + 1

    @property
    def embed_width(self) -> int:
        """Width of the first cluster's embeddings."""
        return self.d_model if self.d_embed is None else self.d_embed

    @property
    def has_projections(self) -> bool:
        """True unless all embeddings are as wide as the model."""
        return self.div_val > 1 or self.embed_width != self.d_model

    @property
    def n_table(self) -> int:
        """Number of embedding tables: one per cluster, or one for all if they are equally wide."""
        return 1 if self.div_val == 1 else len(self.cutoffs) + 1

    @property
    def has_final_norm(self) -> bool:
        return self.norm != "post" if self.final_norm is None else self.final_norm

    @property
    def head_width(self) -> int:
        return self.d_model // self.n_head if self.d_head is None else self.d_head

    @property
    def inner_width(self) -> int:
        return 4 * self.d_model if self.d_inner is None else self.d_inner


class ContextLengths(NamedTuple):
    """Lengths in use; None: no limit."""

    mem_len: int
    clamp_len: int | None
    same_length: SameLength


@dataclass(frozen=True)
class EvalLengths:
    """Lengths of evaluation; None: as in training."""

    mem_len: int | None = None
    """Cached hidden states per layer."""
    clamp_len: int | None = None
    """Largest relative distance; larger ones are clamped."""
    same_length: EvalSameLength = None
    """Number of states that each query attends to; "all": no limit."""

    def __post_init__(self) -> None:
        convert_fields(self)
        for field, least, expected in (
            ("mem_len", 0, "0 (no memory) or more, or null"),
            ("clamp_len", 1, "at least 1, or null"),
        ):
            value = getattr(self, field)
            require(is_at_least(least, value), field, value, expected)

    def resolve(self, config: NetworkConfig) -> ContextLengths:
        """Return these lengths, in place of None as in training; refuse what is no setting."""
        given = vars(self)
        kind = type(config).__name__
        for name, value in given.items():
            is_setting = value is None or hasattr(config, name)
            require(is_setting, name, value, f"null, as {kind} has no {name}")
        if self.clamp_len is not None and getattr(config, "positions", None) in LEARNED:
            expected = f"at most the {config.clamp_len} of training, as positions are learned"
            require(self.clamp_len <= config.clamp_len, "clamp_len", self.clamp_len, expected)
        mem_len, clamp_len, same_length = [
            getattr(config, name, None) if value is None else value for name, value in given.items()
        ]
        return ContextLengths(mem_len, clamp_len, None if same_length == "all" else same_length)


def is_at_least(least: int, value: int | None) -> bool:
    return value is None or value >= least


AS_TRAINED = EvalLengths()  # made here, because torch.compile cannot trace the checks of a new one


def make_config(settings: Mapping[str, Any]) -> NetworkConfig:
    """Return the config of plain settings: TransformerXLConfig, unless they name another class."""
    values = {name: settings[name] for name in settings if name != CLASS}
    if values.get("kernel") in REMOVED_KERNELS:
        values["kernel"] = "auto"
    return find_config_class(settings.get(CLASS))(**values)


def find_config_class(name: str | None) -> type[NetworkConfig]:
    """Import a class of configs by its path, or its name here; None is TransformerXLConfig."""
    if name is None:
        return TransformerXLConfig
    path = OWN.get(name, name)
    known = f"one of {', '.join(OWN)}, or a class such as my_package.MyConfig"
    require("." in path, CLASS, name, known)
    kind = import_class(CLASS, path)
    expected = "a dataclass with n_token, mem_len and build()"
    is_config = is_dataclass(kind) and {"n_token", "mem_len", "build"} <= {*dir(kind)}
    require(is_config, CLASS, name, expected)
    return kind


def describe_config(config: NetworkConfig) -> dict[str, Any]:
    """Return settings for checkpoints and YAML files: plain values, lists instead of tuples."""
    kind = type(config)
    values = {name: to_plain(v) for name, v in asdict(config).items()}
    if kind is TransformerXLConfig:
        return values
    return {CLASS: name_class(kind)} | values


class HoldsNetwork:
    """A module that trains or serves a network, its `net`; functions take it for that network."""

    net: Any


def find_network(model: Any) -> nn.Module:
    """Return the network that a model is, holds, or was compiled from.

    Raises:
        ValueError: it is another object.
    """
    # Of a class that torch.compile has imported already; importing it takes seconds.
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and isinstance(model, dynamo.OptimizedModule):
        # Private: no public function tells. Only the wrapper's own call would run them.
        has_hooks = model._forward_hooks or model._forward_pre_hooks
        expected = "the hooks on the network that was compiled"
        require(not has_hooks, "model", "a compiled network with hooks", expected)
        return find_network(model._orig_mod)
    if isinstance(model, HoldsNetwork):
        return find_network(model.net)
    names = ("config", "empty_memory", "loss")
    is_network = all(hasattr(model, name) for name in names)
    expected = "a network, which has config, empty_memory and loss, or a LanguageModel"
    require(is_network, "model", type(model).__name__, expected)
    return model


def is_transformer_xl(net: nn.Module) -> bool:
    """Return True for a network whose layers are known; a derived config may have others."""
    return type(net.config) is TransformerXLConfig


def require_transformer_xl(net: nn.Module, key: str, value: object) -> None:
    """Refuse an optional part that other networks do not have."""
    expected = f"a network of TransformerXLConfig, as {type(net).__name__} does not have this"
    require(is_transformer_xl(net), key, value, expected)
