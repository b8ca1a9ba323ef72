"""Networks of the original PyTorch code (kimiyoung/transformer-xl)."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from ..errors import require
from ..model import TransformerXL, TransformerXLConfig
from .weight_names import WeightMap, import_weights, map_original_weights

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

REQUIRED = ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner", "mem_len")
"""Keywords without which no network can be built."""

KEYWORDS = (
    *SAME_NAME, "tie_projs", "pre_lnorm", "tgt_len", "ext_len", "cutoffs", "adapt_inp",
    "same_length", "attn_type", "clamp_len", "sample_softmax", "dtype",
)  # fmt: skip
"""All that the original's constructor has, and NVIDIA's."""

CLOSE = 0.8
"""How like a keyword a misspelt one is; none of train.py's other options is as like."""

POSITIONS = {0: "sinusoidal", 1: "learned", 2: "absolute_sinusoidal", 3: "absolute_learned"}
"""attn_type in words."""


def load_original(state_dict: Mapping[str, Tensor], args: Mapping[str, Any]) -> TransformerXL:
    """A network of the original PyTorch code (kimiyoung/transformer-xl), in eval mode.

    `ext_len` and `tgt_len` are not the network's here, but of how it reads. Of learned positions,
    the size of the table is the tensor's.

    Args:
        state_dict: the original's tensors under its own names; their precision is kept.
        args: the keywords its constructor was called with, null for what was left out. Others may
            be among them, as in all options of train.py, unless they look like one misspelt.

    Raises:
        ValueError: a keyword is misspelt or has a value that the original does not have, or a
            tensor is missing, left over or of another shape; it is named.
    """
    config = config_from_original(args, state_dict.get("r_emb"))
    return load_named(state_dict, map_original_weights(config), config)


def load_named(
    state_dict: Mapping[str, Tensor], names: WeightMap, config: TransformerXLConfig
) -> TransformerXL:
    """A network in eval mode and the precision of its weights, from tensors under their names."""
    ours = import_weights(state_dict, names, config)
    model = TransformerXL(config).to(ours["layers.0.attention.o_net.weight"].dtype)
    model.load_state_dict(ours)
    return model.eval()


def config_from_original(
    args: Mapping[str, Any], table_NC: Tensor | None = None
) -> TransformerXLConfig:
    """Our words for the original's keywords, and its table of learned positions, if it has one."""
    config = config_from_keywords(args, table_NC)
    if config.positions == "absolute_learned":
        fits = config.n_head * config.head_width == config.d_model
        allowed = f"d_model / n_head ({config.d_model} / {config.n_head}), as attn_type is 3"
        require(fits, "d_head", config.d_head, allowed)
    return config


def config_from_keywords(args: Mapping[str, Any], table_NC: Tensor | None) -> TransformerXLConfig:
    """Our words for keywords that the original's constructor has, and NVIDIA's."""
    check_spelling(args)
    given = present(args)
    if missing := [key for key in REQUIRED if key not in given]:
        raise ValueError(f"args: {', '.join(missing)} missing; they must be the constructor's own")
    kind = given.get("attn_type", 0)
    known = isinstance(kind, int) and kind in POSITIONS
    require(known, "attn_type", repr(kind), "0, 1, 2 or 3")
    cutoffs = several(given, "cutoffs")
    tie_projs = [*several(given, "tie_projs"), *[False] * (len(cutoffs) + 1)]
    return TransformerXLConfig(
        **numbers(given, [key for key in SAME_NAME if key in given]),
        cutoffs=cutoffs,
        tie_projs=tuple(tie_projs[: len(cutoffs) + 1]),
        positions=POSITIONS[kind],
        norm=norm_of_original(given),
        final_norm=False,
        clamp_len=clamp_of_original(given, table_NC),
        same_length="mem_len" if flag(given, "same_length") else None,
    )


def check_spelling(args: Mapping[str, Any]) -> None:
    """Refuse what looks like a keyword and is none."""
    for key in args:
        close = get_close_matches(str(key), KEYWORDS, cutoff=CLOSE)
        if close and key not in KEYWORDS:
            raise ValueError(f"args: {key} is no keyword; it must be {' or '.join(close)}")


def present(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without settings that are null, as if they were left out."""
    return {key: value for key, value in given.items() if value is not None}


def numbers(given: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """These settings, which a file may hold as something else.

    Raises:
        ValueError: one is no number.
    """
    for key in keys:
        require(isinstance(given[key], int | float), key, repr(given[key]), "a number")
    return {key: given[key] for key in keys}


def several(given: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """Whole numbers, or yes and no for each cluster; left out, none.

    Raises:
        ValueError: it is no list of them.
    """
    value = given.get(key, ())
    fits = isinstance(value, list | tuple) and all(isinstance(each, int) for each in value)
    require(fits, key, repr(value), "a list of whole numbers, or of true and false")
    return tuple(value)


def flag(given: Mapping[str, Any], key: str) -> bool:
    """Yes or no; left out, no.

    Raises:
        ValueError: it is neither, for example a word.
    """
    value = given.get(key, False)
    require(isinstance(value, int) and value in (0, 1), key, repr(value), "true or false")
    return bool(value)


def norm_of_original(given: Mapping[str, Any]) -> str:
    """Where it normalises; of absolute positions, it leaves queries as they are."""
    if not flag(given, "pre_lnorm"):
        return "post"
    return "pre" if given.get("attn_type", 0) in (0, 1) else "pre_keys"


def clamp_of_original(given: Mapping[str, Any], table_NC: Tensor | None) -> int | None:
    """The greatest distance told apart; a table of learned positions begins with distance 0."""
    whole = {"clamp_len": -1, "tgt_len": 0, "ext_len": 0} | given
    lengths = numbers(whole, ("clamp_len", "tgt_len", "ext_len", "mem_len"))
    clamp_len, kind = lengths.pop("clamp_len"), given.get("attn_type", 0)
    if kind in (0, 2):
        return clamp_len if clamp_len > 0 else None
    n_row = sum(lengths.values()) if table_NC is None else table_NC.shape[1:2].numel()
    require(n_row >= 1, "tgt_len", given.get("tgt_len"), "given, as positions are learned")
    return (min(n_row, clamp_len) if kind == 1 and clamp_len > 0 else n_row) - 1
