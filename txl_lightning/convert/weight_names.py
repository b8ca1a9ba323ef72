"""Our names for weights and those of the original PyTorch code, in both directions.

Other codes that descend from it have most of its names: nvidia.py, huggingface.py.

H heads   K head width   D width   E width of embeddings   V vocabulary   N layers
C learned distances   X clusters but the first
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..checkpoints.export import list_names
from ..model import TransformerXL, TransformerXLConfig

COMPUTED = {"pos_emb.inv_freq", "transformer.pos_emb.inv_freq"}
"""Tensors of theirs that are no weights."""


Tensors = tuple[Tensor, ...]


class Part(NamedTuple):
    """One tensor of theirs and the one or two of ours that hold the same, or the reverse."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    read: Callable[..., Tensors]
    write: Callable[..., Tensors]


class WeightMap(NamedTuple):
    """The names that another code has for the weights of a network."""

    parts: list[Part]
    copies: dict[str, str]
    """Tensors that may be left out, because they repeat another one: what they repeat."""


def same(theirs: str, ours: str) -> Part:
    """Another name for the same tensor."""
    return Part((theirs,), (ours,), lambda tensor: (tensor,), lambda tensor: (tensor,))


def flipped(theirs: str, ours: str, dim: int) -> Part:
    """The same in reverse order."""

    def flip(tensor: Tensor) -> Tensors:
        return (tensor.flip(dim),)

    return Part((theirs,), (ours,), flip, flip)


def parts(config: TransformerXLConfig) -> list[Part]:
    """Every tensor of a network, by both names."""
    layers = [part for n in range(config.n_layer) for part in layer(n, config)]
    return [*embedding(config), *softmax(config), *POSITIONS[config.positions](config), *layers]


def embedding(config: TransformerXLConfig) -> Iterator[Part]:
    """The table or tables, and what projects them."""
    if not config.cutoffs and not config.has_projections:
        yield same("word_emb.emb_layers.0.weight", "embedding.weight")
        return
    for i in range(config.n_table):
        yield same(f"word_emb.emb_layers.{i}.weight", f"embedding.tables.{i}.weight")
        if config.has_projections:
            yield same(f"word_emb.emb_projs.{i}", f"embedding.projections.{i}.weight")


def softmax(config: TransformerXLConfig) -> Iterator[Part]:
    """The scores of clusters, which the original has in reverse order; then those of tokens."""
    if not config.cutoffs:
        yield same("crit.out_layers.0.weight", "head.out.weight")
        yield same("crit.out_layers.0.bias", "head.out.bias")
        if config.has_projections:
            yield same("crit.out_projs.0", "head.down.weight")
        return
    yield flipped("crit.cluster_weight", "head.cluster.weight", 0)
    yield flipped("crit.cluster_bias", "head.cluster.bias", 0)
    for i in range(config.n_table):
        yield same(f"crit.out_layers.{i}.weight", f"head.outs.{i}.weight")
        yield same(f"crit.out_layers.{i}.bias", f"head.outs.{i}.bias")
    if config.has_projections:
        for i in range(len(config.cutoffs) + 1):
            yield same(f"crit.out_projs.{i}", f"head.downs.{i}.weight")


def sinusoidal(config: TransformerXLConfig) -> Iterator[Part]:
    """u and v, one pair or one in each layer; each layer's W_kR."""
    for theirs, ours in (("r_w_bias", "positions.u_NHK"), ("r_r_bias", "positions.v_NHK")):
        tied = Part((theirs,), (ours,), lambda t_HK: (t_HK[None],), lambda t_1HK: (t_1HK[0],))
        yield same(theirs, ours) if config.untie_r else tied
    for n in range(config.n_layer):
        yield same(f"layers.{n}.dec_attn.r_net.weight", f"positions.r_nets.{n}.weight")


def learned(config: TransformerXLConfig) -> Iterator[Part]:
    """Tables that begin with the farthest distance; ours begin with the nearest."""
    yield same("r_w_bias", "positions.u_NHK")
    yield cut(flipped("r_emb", "positions.r_NCHK", 1), config)
    yield cut(flipped("r_bias", "positions.b_NCH", 1), config)


def absolute_learned(config: TransformerXLConfig) -> Iterator[Part]:
    """Places by head, which together are as wide as the model; the last is the newest token's."""
    heads = (config.n_head, config.head_width)
    yield Part(
        ("r_emb",),
        ("positions.p_NCD",),
        lambda r_NCHK: (r_NCHK.flatten(2).flip(1),),
        lambda p_NCD: (p_NCD.flip(1).unflatten(2, heads),),
    )


def cut(part: Part, config: TransformerXLConfig) -> Part:
    """Without the rows beyond clamp_len, which the original leaves unused."""
    read = partial(lambda table_NC: part.read(table_NC[:, -config.n_distance :]))
    return part._replace(read=read)


POSITIONS = {
    "sinusoidal": sinusoidal,
    "learned": learned,
    "absolute_sinusoidal": lambda config: iter(()),
    "absolute_learned": absolute_learned,
}
"""Schemes that the original has."""


def layer(n: int, config: TransformerXLConfig) -> Iterator[Part]:
    """Attention and feed-forward of layer `n`."""
    attention, theirs = f"layers.{n}.attention.", f"layers.{n}.dec_attn."
    nets = (attention + "q_net.weight", attention + "kv_net.weight")
    if config.is_absolute:
        yield same(theirs + "q_net.weight", nets[0])
        yield same(theirs + "kv_net.weight", nets[1])
    else:
        fused = (theirs + "qkv_net.weight",)
        yield Part(fused, nets, query_and_rest, lambda q, kv: (torch.cat([q, kv]),))
    yield same(theirs + "o_net.weight", attention + "o_net.weight")
    norm = "norm_after" if config.norm == "post" else "norm_before"
    for kind in ("weight", "bias"):
        yield same(f"{theirs}layer_norm.{kind}", f"layers.{n}.{norm}.{kind}")
        feed_forward = f"layers.{n}.pos_ff."
        yield same(f"{feed_forward}layer_norm.{kind}", f"layers.{n}.feed_forward.{norm}.{kind}")
        for i in (0, 3):
            ours = f"layers.{n}.feed_forward.net.{i}.{kind}"
            yield same(f"{feed_forward}CoreNet.{i}.{kind}", ours)


def query_and_rest(qkv: Tensor) -> Tensors:
    """One matrix for queries, one for keys and values."""
    q, k, v = qkv.chunk(3)
    return q, torch.cat([k, v])


def copies(config: TransformerXLConfig) -> dict[str, str]:
    """Tensors of theirs that are another one: their names, and what they are."""
    same_weight = {
        f"crit.out_layers.{i}.weight": f"word_emb.emb_layers.{i}.weight"
        for i in range(config.n_table)
    }
    same_projection = {
        f"crit.out_projs.{i}": f"word_emb.emb_projs.{min(i, config.n_table - 1)}"
        for i, tie in enumerate(config.tie_projs)
        if tie and config.has_projections
    }
    return (same_weight if config.tie_weight else {}) | same_projection


def map_original_weights(config: TransformerXLConfig) -> WeightMap:
    """The names of the original PyTorch code."""
    return WeightMap(parts(config), copies(config))


def import_weights(
    theirs: Mapping[str, Tensor], names: WeightMap, config: TransformerXLConfig
) -> dict[str, Tensor]:
    """Their tensors under our names. Copies may be left out.

    Raises:
        ValueError: one is missing, or has no place here, or has another shape than the settings
            say, or is not what it should repeat; it is named.
    """
    given = with_copies(theirs, names.copies)
    needed = {name for part in names.parts for name in part.theirs}
    missing, left = needed - given.keys(), given.keys() - needed - names.copies.keys() - COMPUTED
    if missing or left:
        said = {"missing": missing, "left over": left}
        lists = (f"{key}: {list_names(said[key])}" for key in said if said[key])
        raise ValueError(f"state_dict: {'; '.join(lists)}")
    with torch.device("meta"):
        shapes = TransformerXL(config).state_dict()
    return {
        name: tensor
        for part in names.parts
        for name, tensor in zip(part.ours, fitting(part, given, shapes), strict=True)
    }


def export_weights(ours: Mapping[str, Tensor], names: WeightMap) -> dict[str, Tensor]:
    """Our tensors under their names, the copies too."""
    theirs = {
        name: tensor
        for part in names.parts
        for name, tensor in zip(
            part.theirs, part.write(*(ours[name] for name in part.ours)), strict=True
        )
    }
    return theirs | {name: theirs[source] for name, source in names.copies.items()}


def with_copies(theirs: Mapping[str, Tensor], copies: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors, with the copies that were left out.

    Raises:
        ValueError: one that is there is not what it should repeat.
    """
    given = dict(theirs)
    for name, source in copies.items():
        if source in given and not torch.equal(
            given.setdefault(name, given[source]), given[source]
        ):
            raise ValueError(f"state_dict: {name} is not {source}, as the settings say it is")
    return given


def fitting(part: Part, given: Mapping[str, Tensor], shapes: Mapping[str, Tensor]) -> Tensors:
    """What is read from their tensors, if it is of the shapes that the network has.

    Raises:
        ValueError: with both shapes, in their names.
    """
    theirs = [given[name] for name in part.theirs]
    try:
        found = part.read(*theirs)
    except (RuntimeError, LookupError):
        found = ()
    wanted = [shapes[name] for name in part.ours]
    numbers = all(tensor.is_floating_point() for tensor in theirs)
    if numbers and [tensor.shape for tensor in found] == [tensor.shape for tensor in wanted]:
        return found
    kinds = [f"{list(tensor.shape)} {str(tensor.dtype)[6:]}" for tensor in theirs]
    allowed = [list(tensor.shape) for tensor in part.write(*wanted)]
    raise ValueError(
        f"state_dict: {', '.join(part.theirs)}: invalid {', '.join(kinds)}; by the "
        f"settings it must be {', '.join(map(str, allowed))} of floating point"
    )


def from_original(theirs: Mapping[str, Tensor], config: TransformerXLConfig) -> dict[str, Tensor]:
    """The original's tensors under our names. Tied ones may be left out.

    Raises:
        ValueError: see `import_weights`.
    """
    return import_weights(theirs, map_original_weights(config), config)


def to_original(ours: Mapping[str, Tensor], config: TransformerXLConfig) -> dict[str, Tensor]:
    """Our tensors under the original's names, the tied ones too."""
    return export_weights(ours, map_original_weights(config))
