"""Who takes part: this package and others' implementations.

A contestant reads the next segment and returns its nats_BL; it keeps its memory. Ours, Hugging
Face's and the original have the same weights. x-transformers has other positions (a bias for each
distance, so no keys of distances), labml-nn learns a key for each distance: their weights are their
own.
"""

import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.speed.cases import Case
from txl_lightning import Adaptation
from txl_lightning.checkpoints.contents import export_weights
from txl_lightning.convert.huggingface import config_to_huggingface, map_huggingface_weights
from txl_lightning.convert.original import SAME_NAME, map_original_weights
from txl_lightning.model import TransformerXL, TransformerXLConfig, pack_weights
from txl_lightning.model.reading import Reader
from txl_lightning.model.ring import Decoder

FILLING = 160  # most tokens of a segment that only fills memories
TRANSFO_XL = "transformers.models.deprecated.transfo_xl"
PACKAGES = {
    "Hugging Face": f"{TRANSFO_XL}.modeling_transfo_xl",
    "labml-nn": "labml_nn.transformers.xl.relative_mha",
    "x-transformers": "x_transformers",
}
"""What each peer imports."""
ORIGINAL = "original"


class Ours:
    """This package: with keys and values kept in evaluation, unless a kernel is asked for."""

    def __init__(self, case: Case, kernel: str | None = None) -> None:
        torch.manual_seed(0)
        self.net = TransformerXL(replace(case.config, kernel=kernel or "auto"))
        if not case.trains:
            self.net = pack_weights(self.net, "float32")
        uses_cache = not case.trains and kernel is None
        read = Decoder if case.kind == "decoding" else Reader
        self.reader = read(self.net, Adaptation()) if uses_cache else self.net
        self.memory = self.reader.empty_memory(case.rows)

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        if not isinstance(self.reader, Decoder):
            nats_BL, self.memory = self.reader.loss(tokens_BL, targets_BL, self.memory)
            return nats_BL
        h_BLD, self.memory = self.reader.hidden(tokens_BL, self.memory)
        return self.reader.head.nats(h_BLD, targets_BL)


def our_network(case: Case) -> TransformerXL:
    """Return the same weights as `Ours`, as others can have them: no norm after the last layer."""
    torch.manual_seed(0)
    config = case.config
    # Widths that are left out are derived by us alone.
    widths = {"d_head": config.head_width, "d_inner": config.inner_width}
    widths |= {"d_embed": config.embed_width}
    return TransformerXL(replace(config, final_norm=False, **widths))


class HuggingFace:
    """TransfoXL of transformers 4.57.6; labels are not used, because it would shift them."""

    def __init__(self, case: Case) -> None:
        theirs = import_module(TRANSFO_XL)
        net = our_network(case)
        torch.Tensor.type_as = type_as
        config = theirs.TransfoXLConfig(**config_to_huggingface(net.config))
        self.net = theirs.TransfoXLLMHeadModel(config)
        weights = export_weights(net.state_dict(), map_huggingface_weights(net.config))
        self.net.load_state_dict(self.net.state_dict() | weights)
        empty = torch.zeros(0, case.rows, net.config.d_model)
        self.memory = [empty] * net.config.n_layer

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        output = self.net(input_ids=tokens_BL, mems=self.memory)
        self.memory = output.mems
        return -output.prediction_scores.gather(2, targets_BL[..., None]).squeeze(2)


def type_as(self: Tensor, other=None, dtype=None, of=torch.Tensor.type_as) -> Tensor:
    """It calls it with a dtype, which no torch allows; what is meant is `to`."""
    return of(self, other) if dtype is None else self.to(dtype)


class Original:
    """The paper's PyTorch code."""

    def __init__(self, case: Case, path: Path) -> None:
        self.net = build_original(path, our_network(case), case.tgt_len)
        self.memory: tuple[Tensor, ...] = ()

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        columns = tokens_BL.t().contiguous(), targets_BL.t().contiguous()
        nats_LB, *self.memory = self.net(*columns, *self.memory)
        return nats_LB.t()


def build_original(folder: Path, ours: TransformerXL, tgt_len: int) -> nn.Module:
    """Return the original's network with our weights.

    Its masks are made boolean, without which it does not run on today's PyTorch.
    """
    folder = folder if (folder / "mem_transformer.py").exists() else folder / "pytorch"
    sys.path[:0] = [str(folder), str(folder / "utils")]
    torch.version.cuda = torch.version.cuda or "0.0"
    torch.Tensor.byte = lambda self: self.bool()
    config = ours.config
    keywords = {name: getattr(config, name) for name in SAME_NAME}
    keywords |= {"tgt_len": tgt_len, "ext_len": 0, "pre_lnorm": config.norm == "pre"}
    keywords |= {"clamp_len": config.clamp_len or -1, "same_length": bool(config.same_length)}
    keywords |= {"cutoffs": [*config.cutoffs]}
    keywords |= {"tie_projs": [False] + [True] * len(config.cutoffs)}
    net = import_module("mem_transformer").MemTransformerLM(**keywords)
    weights = export_weights(ours.state_dict(), map_original_weights(config))
    net.load_state_dict(net.state_dict() | weights)
    return net


class XTransformers:
    """x-transformers' recurrence, with the positions that it allows there."""

    has_memory = True

    def __init__(self, case: Case) -> None:
        theirs = import_module("x_transformers")
        config = case.config
        layers = theirs.Decoder(
            dim=config.d_model,
            depth=config.n_layer,
            heads=config.n_head,
            attn_dim_head=config.head_width,
            ff_mult=config.inner_width / config.d_model,
            rel_pos_bias=True,
        )
        sizes = {"max_seq_len": max(case.tgt_len, FILLING), "max_mem_len": case.mem_len}
        self.net = theirs.TransformerWrapper(num_tokens=config.n_token, attn_layers=layers, **sizes)
        self.memory = None

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        logits_BLV, self.memory = self.net(tokens_BL, mems=self.memory, return_mems=True)
        return F.cross_entropy(logits_BLV.mT, targets_BL, reduction="none")


class Labml:
    """labml-nn's layers, and what its experiment adds: embedding, softmax, mask, memory."""

    def __init__(self, case: Case) -> None:
        theirs = import_module("labml_nn.transformers.xl")
        config = case.config
        self.mem_len = case.mem_len
        D = config.d_model
        attention = theirs.RelativeMultiHeadAttention(config.n_head, D, 0.0)
        layer = theirs.TransformerXLLayer(
            d_model=D,
            self_attn=attention,
            feed_forward=theirs.FeedForward(D, config.inner_width, 0.0),
            dropout_prob=0.0,
        )
        layers = theirs.TransformerXL(layer, config.n_layer)
        self.net = nn.ModuleList([nn.Embedding(config.n_token, D), layers])
        self.net.append(nn.Linear(D, config.n_token))
        self.memory: list[Tensor] = []

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        embedding, layers, head = self.net
        L = tokens_BL.size(1)
        M = len(self.memory[0]) if self.memory else 0
        mask_LS1 = torch.ones(L, M + L, dtype=torch.bool).tril(M)[..., None]
        h_LBD, states = layers(embedding(tokens_BL.t()), self.memory, mask_LS1)
        old = self.memory or [states[0][:0]] * len(states)
        both = zip(old, states, strict=True)
        self.memory = [torch.cat(pair)[-self.mem_len :] for pair in both]
        return F.cross_entropy(head(h_LBD).permute(1, 2, 0), targets_BL, reduction="none")


def make_contestant(name: str, case: Case, original: Path | None):
    """Make a contestant by its name; "ours, matmul" is ours with a kernel."""
    if name.startswith("ours"):
        return Ours(case, name.partition(", ")[2] or None)
    if name == ORIGINAL:
        return Original(case, original)
    peers = {"Hugging Face": HuggingFace, "labml-nn": Labml, "x-transformers": XTransformers}
    return peers[name](case)


def find_missing() -> dict[str, str]:
    """Return the peers that cannot take part, each with the reason."""
    return {
        name: f"{module} is not installed" for name, module in PACKAGES.items() if not has(module)
    }


def has(module: str) -> bool:
    """Return True if a module can be imported; transformers 5 lacks the port of Transformer-XL."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def has_our_weights(name: str, config: TransformerXLConfig) -> bool:
    """Tell whether the contestant must compute what ours does."""
    same = name in (ORIGINAL, "Hugging Face") and not config.has_final_norm
    return same or name.startswith("ours")
