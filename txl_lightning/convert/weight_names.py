"""Our names for weights and those of the original PyTorch code, in both directions.

Other codes that descend from it have most of its names: nvidia.py, huggingface.py.

H heads   K head width   D width   N layers   C learned distances
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..checkpoints.export import list_names
from ..model import TransformerXL, TransformerXLConfig

# Tensors of theirs that are no weights.
COMPUTED = {"pos_emb.inv_freq", "transformer.pos_emb.inv_freq"}
Tensors = tuple[Tensor, ...]


class Part(NamedTuple):
    """A tensor of another code and the one or two of ours with the same values, or the reverse."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Callable[..., Tensors]
    to_theirs: Callable[..., Tensors]


class WeightMap(NamedTuple):
    """The names that another code has for the weights of a network."""

    parts: list[Part]
    copies: dict[str, str]
    """Tensors that may be left out, because they repeat another one: what they repeat."""


def map_original_weights(config: TransformerXLConfig) -> WeightMap:
    """Return the original's names for the weights of a network."""
    parts = [*map_embedding(config), *map_softmax(config), *map_positions(config)]
    parts += [part for n in range(config.n_layer) for part in map_layer(n, config)]
    tables = range(config.n_table if config.tie_weight else 0)
    copies = {f"crit.out_layers.{i}.weight": f"word_emb.emb_layers.{i}.weight" for i in tables}
    for i, tie in enumerate(config.tie_projs):
        if tie and config.has_projections:
            copies[f"crit.out_projs.{i}"] = f"word_emb.emb_projs.{min(i, config.n_table - 1)}"
    return WeightMap(parts, copies)


def keep(theirs: str, ours: str) -> Part:
    """Map a tensor that has only another name."""
    return Part((theirs,), (ours,), lambda tensor: (tensor,), lambda tensor: (tensor,))


def reverse(theirs: str, ours: str, dim: int) -> Part:
    """Map a tensor that is in reverse order along a dimension."""
    return Part((theirs,), (ours,), *[lambda tensor: (tensor.flip(dim),)] * 2)


def map_embedding(config: TransformerXLConfig) -> Iterator[Part]:
    """Map the table or tables, and what projects them."""
    if not config.cutoffs and not config.has_projections:
        yield keep("word_emb.emb_layers.0.weight", "embedding.weight")
        return
    for i in range(config.n_table):
        yield keep(f"word_emb.emb_layers.{i}.weight", f"embedding.tables.{i}.weight")
        if config.has_projections:
            yield keep(f"word_emb.emb_projs.{i}", f"embedding.projections.{i}.weight")


def map_softmax(config: TransformerXLConfig) -> Iterator[Part]:
    """Map the scores of clusters, which the original has in reverse order; then those of tokens."""
    out, down = ("outs.{}", "downs.{}") if config.cutoffs else ("out", "down")
    for kind in ("weight", "bias"):
        if config.cutoffs:
            yield reverse(f"crit.cluster_{kind}", f"head.cluster.{kind}", 0)
        for i in range(config.n_table):
            yield keep(f"crit.out_layers.{i}.{kind}", f"head.{out.format(i)}.{kind}")
    for i in range(len(config.cutoffs) + 1 if config.has_projections else 0):
        yield keep(f"crit.out_projs.{i}", f"head.{down.format(i)}.weight")


def map_positions(config: TransformerXLConfig) -> Iterator[Part]:
    """Map what the four schemes of the original have; sinusoidal absolute positions have none."""
    match config.positions:
        case "sinusoidal":
            for theirs, ours in (("r_w_bias", "positions.u_NHK"), ("r_r_bias", "positions.v_NHK")):
                one = Part(
                    (theirs,), (ours,), lambda t_HK: (t_HK[None],), lambda t_1HK: (t_1HK[0],)
                )
                yield keep(theirs, ours) if config.untie_r else one
            for n in range(config.n_layer):
                yield keep(f"layers.{n}.dec_attn.r_net.weight", f"positions.r_nets.{n}.weight")
        case "learned":
            yield keep("r_w_bias", "positions.u_NHK")
            # Their tables begin with the farthest distance, and rows beyond clamp_len are unused.
            for theirs, ours in (("r_emb", "positions.r_NCHK"), ("r_bias", "positions.b_NCH")):
                yield reverse(theirs, ours, 1)._replace(
                    to_ours=lambda table_NC: (table_NC[:, -config.n_distance :].flip(1),)
                )
        case "absolute_learned":
            # Places by head, which together are as wide as the model; the last is the newest's.
            heads = (config.n_head, -1)
            yield Part(
                ("r_emb",),
                ("positions.p_NCD",),
                lambda r_NCHK: (r_NCHK.flatten(2).flip(1),),
                lambda p_NCD: (p_NCD.flip(1).unflatten(2, heads),),
            )


def map_layer(n: int, config: TransformerXLConfig) -> Iterator[Part]:
    """Map attention and feed-forward of layer `n`."""
    ours, theirs = f"layers.{n}.attention.", f"layers.{n}.dec_attn."
    if config.is_absolute:
        yield keep(theirs + "q_net.weight", ours + "q_net.weight")
        yield keep(theirs + "kv_net.weight", ours + "kv_net.weight")
    else:
        yield Part(
            (theirs + "qkv_net.weight",),
            (ours + "q_net.weight", ours + "kv_net.weight"),
            lambda qkv: qkv.tensor_split([qkv.size(0) // 3]),
            lambda q, kv: (torch.cat([q, kv]),),
        )
    yield keep(theirs + "o_net.weight", ours + "o_net.weight")
    norm = "norm_after" if config.norm == "post" else "norm_before"
    for kind in ("weight", "bias"):
        yield keep(f"{theirs}layer_norm.{kind}", f"layers.{n}.{norm}.{kind}")
        ours_ff, theirs_ff = f"layers.{n}.feed_forward.", f"layers.{n}.pos_ff."
        yield keep(f"{theirs_ff}layer_norm.{kind}", f"{ours_ff}{norm}.{kind}")
        for i in (0, 3):
            yield keep(f"{theirs_ff}CoreNet.{i}.{kind}", f"{ours_ff}net.{i}.{kind}")


def load_weights(
    theirs: Mapping[str, Tensor], names: WeightMap, config: TransformerXLConfig
) -> TransformerXL:
    """Build a network, in eval mode and the precision of its weights, from another code's tensors.

    Raises:
        ValueError: one is missing, or has no place here, or has another shape than the settings
            say, or is not what it should repeat; it is named.
    """
    copies = {name: source for name, source in names.copies.items() if source in theirs}
    for name, source in copies.items():
        if name in theirs and not torch.equal(theirs[name], theirs[source]):
            raise ValueError(f"state_dict: {name} is not {source}, as the settings say it is")
    given = {name: theirs[source] for name, source in copies.items()} | dict(theirs)
    needed = {name for part in names.parts for name in part.theirs}
    extra = given.keys() - needed - names.copies.keys() - COMPUTED
    wrong = {"missing": needed - given.keys(), "left over": extra}
    if lists := [f"{key}: {list_names(found)}" for key, found in wrong.items() if found]:
        raise ValueError(f"state_dict: {'; '.join(lists)}")
    # Nothing is allocated for sizes that the tensors do not have.
    with torch.device("meta"):
        shapes = TransformerXL(config).state_dict()
    ours: dict[str, Tensor] = {}
    for part in names.parts:
        ours |= zip(part.ours, convert_part(part, given, shapes), strict=True)
    model = TransformerXL(config).to(ours["layers.0.attention.o_net.weight"].dtype)
    model.load_state_dict(ours)
    return model.eval()


def convert_part(part: Part, given: Mapping[str, Tensor], shapes: Mapping[str, Tensor]) -> Tensors:
    """Return our tensors of a part, if they have the shapes of the network."""
    theirs = [given[name] for name in part.theirs]
    expected = [shapes[name] for name in part.ours]
    try:
        found = part.to_ours(*theirs)
    except (RuntimeError, LookupError):
        found = ()
    floating = all(tensor.is_floating_point() for tensor in theirs)
    if floating and [tensor.shape for tensor in found] == [tensor.shape for tensor in expected]:
        return found
    kinds = [f"{list(tensor.shape)} {str(tensor.dtype)[6:]}" for tensor in theirs]
    allowed = [str(list(tensor.shape)) for tensor in part.to_theirs(*expected)]
    raise ValueError(
        f"state_dict: {', '.join(part.theirs)}: invalid {', '.join(kinds)}; expected "
        f"{', '.join(allowed)} of floating point, by the settings"
    )


def export_weights(ours: Mapping[str, Tensor], names: WeightMap) -> dict[str, Tensor]:
    """Return our tensors under another code's names, the copies too."""
    theirs: dict[str, Tensor] = {}
    for part in names.parts:
        converted = part.to_theirs(*(ours[name] for name in part.ours))
        theirs |= zip(part.theirs, converted, strict=True)
    return theirs | {name: theirs[source] for name, source in names.copies.items()}
