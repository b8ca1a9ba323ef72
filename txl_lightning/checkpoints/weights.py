"""Map weights between naming schemes: load, check against the network's shapes, export."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import require
from ..model import TransformerXL, TransformerXLConfig

# Tensors of other codes that are not weights.
COMPUTED = {"pos_emb.inv_freq", "transformer.pos_emb.inv_freq"}
Tensors = tuple[Tensor, ...]


def keep(*tensors: Tensor) -> Tensors:
    return tensors


class Part(NamedTuple):
    """A tensor of another code and the one or two of ours with its values, or the reverse."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Callable[..., Tensors] = keep
    to_theirs: Callable[..., Tensors] = keep


class WeightMap(NamedTuple):
    """The names that another code has for the weights of a network."""

    parts: list[Part]
    copies: dict[str, str]
    """Optional tensors that repeat another one: name of the copy -> name of the source."""


def map_weights(config: TransformerXLConfig, map_weight: Callable[[str], Part | None]) -> WeightMap:
    """Map every weight of a network by name; None if it is in the part of another weight."""
    parts, copies = [], {}
    first: dict[Tensor, str] = {}
    for ours, weight in empty_network(config).named_parameters(remove_duplicate=False):
        if part := map_weight(ours):
            parts.append(part)
            # A weight that is shared has several names.
            source = first.setdefault(weight, part.theirs[0])
            if source != part.theirs[0]:
                copies[part.theirs[0]] = source
    return WeightMap(parts, copies)


def map_own_weights(config: TransformerXLConfig) -> WeightMap:
    return map_weights(config, lambda name: Part((name,), (name,)))


def empty_network(config: TransformerXLConfig) -> TransformerXL:
    """Return a network with names and shapes on the meta device; no memory is allocated."""
    try:
        with torch.device("meta"):
            return TransformerXL(config)
    except RuntimeError as error:
        raise ValueError(f"net: sizes beyond those of tensors: {error}") from error


def load_weights(
    theirs: Mapping[str, Tensor],
    map_names: Callable[[TransformerXLConfig], WeightMap],
    config: TransformerXLConfig,
) -> TransformerXL:
    """Build a network, in eval mode and the precision of its weights, from tensors of any code.

    Shapes are checked before memory is allocated; errors are those of `match_weights`.
    """
    return build_network(match_weights(theirs, map_names, config), config)


def build_network(ours: Mapping[str, Tensor], config: TransformerXLConfig) -> TransformerXL:
    model = TransformerXL(config).to(ours["layers.0.attention.o_net.weight"].dtype)
    model.load_state_dict(ours)
    return model.eval()


def match_weights(
    theirs: Mapping[str, Tensor],
    map_names: Callable[[TransformerXLConfig], WeightMap],
    config: TransformerXLConfig,
) -> dict[str, Tensor]:
    """Return tensors of any code under the names of a network, which is not built.

    Raises:
        ValueError: a tensor is missing, unknown, of another shape than the settings imply, or
            differs from the one it should repeat; the message names it.
    """
    deepest = f"at most {len(theirs)}, as there are {len(theirs)} tensors"
    require(config.n_layer <= len(theirs), "n_layer", config.n_layer, deepest)
    names = map_names(config)
    copies = {name: source for name, source in names.copies.items() if source in theirs}
    for name, source in copies.items():
        if name in theirs and not torch.equal(theirs[name], theirs[source]):
            raise ValueError(f"state_dict: {name} and {source} differ; the settings share them")
    state = {name: theirs[source] for name, source in copies.items()} | dict(theirs)
    needed = {name for part in names.parts for name in part.theirs}
    extra = state.keys() - needed - names.copies.keys() - COMPUTED
    wrong = {"missing": needed - state.keys(), "left over": extra}
    if lists := [f"{key}: {list_names(some)}" for key, some in wrong.items() if some]:
        raise ValueError(f"state_dict: {'; '.join(lists)}")
    shapes = empty_network(config).state_dict()
    ours: dict[str, Tensor] = {}
    for part in names.parts:
        ours |= zip(part.ours, convert_part(part, state, shapes), strict=True)
    return ours


def list_names(names: set[str], limit: int = 4) -> str:
    shown = ", ".join(sorted(names)[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def convert_part(part: Part, state: Mapping[str, Tensor], shapes: Mapping[str, Tensor]) -> Tensors:
    """Return our tensors of a part; ValueError if they do not have the shapes of the network."""
    theirs = [state[name] for name in part.theirs]
    expected = [shapes[name] for name in part.ours]
    try:
        ours = part.to_ours(*theirs)
    except (RuntimeError, LookupError):
        ours = ()
    floating = all(tensor.is_floating_point() for tensor in theirs)
    if floating and [tensor.shape for tensor in ours] == [tensor.shape for tensor in expected]:
        return ours
    kinds = [f"{list(tensor.shape)} {str(tensor.dtype)[6:]}" for tensor in theirs]
    allowed = [str(list(tensor.shape)) for tensor in part.to_theirs(*expected)]
    raise ValueError(
        f"state_dict: {', '.join(part.theirs)}: invalid {', '.join(kinds)}; expected "
        f"{', '.join(allowed)} of floating point, by the settings"
    )


def export_weights(ours: Mapping[str, Tensor], names: WeightMap) -> dict[str, Tensor]:
    """Return our tensors, and copies of shared ones, under another code's names."""
    theirs: dict[str, Tensor] = {}
    for part in names.parts:
        converted = part.to_theirs(*(ours[name] for name in part.ours))
        theirs |= zip(part.theirs, converted, strict=True)
    return theirs | {name: theirs[source] for name, source in names.copies.items()}
