"""Networks of the original PyTorch code (kimiyoung/transformer-xl)."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..model import TransformerXL, TransformerXLConfig, require
from .names import Names, names_of_original, read_as

SAME_NAME = (
    "n_token",
    "n_layer",
    "n_head",
    "d_model",
    "d_head",
    "d_inner",
    "d_embed",
    "div_val",
    "mem_len",
    "dropout",
    "dropatt",
    "tie_weight",
)
"""Keywords that we have too."""

REQUIRED = ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner")
"""Keywords without which no network can be built."""

POSITIONS = {0: "sinusoidal", 1: "learned", 2: "absolute_sinusoidal", 3: "absolute_learned"}
"""attn_type in words."""


def load_original(state_dict: Mapping[str, Tensor], args: Mapping[str, Any]) -> TransformerXL:
    """A network of the original PyTorch code (kimiyoung/transformer-xl), in eval mode.

    `ext_len` and `tgt_len` are not the network's here, but of how it reads. Of learned positions,
    the size of the table is the tensor's.

    Args:
        state_dict: the original's tensors under its own names; their precision is kept.
        args: the keywords its constructor was called with.

    Raises:
        ValueError: a keyword has a value that the original does not have, or a tensor is missing,
            left over or of another shape; it is named.
    """
    config = config_of_original(args, state_dict.get("r_emb"))
    return load_named(state_dict, names_of_original(config), config)


def load_named(
    state_dict: Mapping[str, Tensor], names: Names, config: TransformerXLConfig
) -> TransformerXL:
    """A network in eval mode and the precision of its weights, from tensors under their names."""
    ours = read_as(state_dict, names, config)
    model = TransformerXL(config).to(ours["layers.0.attention.o_net.weight"].dtype)
    model.load_state_dict(ours)
    return model.eval()


def config_of_original(
    args: Mapping[str, Any], table_NC: Tensor | None = None
) -> TransformerXLConfig:
    """Our words for the original's keywords, and its table of learned positions, if it has one."""
    if missing := [key for key in REQUIRED if key not in args]:
        raise ValueError(f"args: {', '.join(missing)} missing; they must be the constructor's own")
    kind = args.get("attn_type", 0)
    if kind not in POSITIONS:
        raise ValueError(f"attn_type: {kind} is not possible; it must be 0, 1, 2 or 3")
    cutoffs = tuple(args.get("cutoffs") or ())
    tie_projs = [*(args.get("tie_projs") or ()), *[False] * (len(cutoffs) + 1)]
    return TransformerXLConfig(
        **numbers(args, [key for key in SAME_NAME if args.get(key) is not None]),
        cutoffs=cutoffs,
        tie_projs=tuple(tie_projs[: len(cutoffs) + 1]),
        positions=POSITIONS[kind],
        norm=norm_of_original(args),
        final_norm=False,
        clamp_len=clamp_of_original(args, table_NC),
        same_length="mem_len" if args.get("same_length") else None,
    )


def numbers(given: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """These settings, which a file may hold as something else.

    Raises:
        ValueError: one is no number.
    """
    for key in keys:
        require(isinstance(given[key], int | float), key, repr(given[key]), "a number")
    return {key: given[key] for key in keys}


def norm_of_original(args: Mapping[str, Any]) -> str:
    """Where it normalises; of absolute positions, it leaves queries as they are."""
    if not args.get("pre_lnorm"):
        return "post"
    return "pre" if args.get("attn_type", 0) in (0, 1) else "pre_keys"


def clamp_of_original(args: Mapping[str, Any], table_NC: Tensor | None) -> int | None:
    """The greatest distance told apart; a table of learned positions begins with distance 0."""
    clamp_len, kind = args.get("clamp_len", -1), args.get("attn_type", 0)
    if kind in (0, 2):
        return clamp_len if clamp_len > 0 else None
    given = sum(args.get(name) or 0 for name in ("tgt_len", "ext_len", "mem_len"))
    n_row = given if table_NC is None else table_NC.size(1)
    return (min(n_row, clamp_len) if kind == 1 and clamp_len > 0 else n_row) - 1
