"""Networks of the original PyTorch code (kimiyoung/transformer-xl): settings and names of weights.

H heads   K head width   D width   N layers   C learned distances
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoints import contents
from ..checkpoints.contents import Part, Tensors, WeightMap
from ..checkpoints.saving import warn_unverified
from ..errors import require
from ..model import TransformerXL, TransformerXLConfig

NO_CHECKSUM = "another code's files have no checksum"
REQUIRED = ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner", "mem_len")
# Keywords with the same name here.
SAME_NAME = (*REQUIRED, "d_embed", "div_val", "dropout", "dropatt", "tie_weight")
DEFAULTS = {
    "attn_type": 0, "clamp_len": -1, "cutoffs": [], "ext_len": 0, "pre_lnorm": False,
    "same_length": False, "tgt_len": 0, "tie_projs": [], "tie_weight": True,
}  # fmt: skip
# All keywords of the original's constructor, and of NVIDIA's.
KEYWORDS = {*SAME_NAME, *DEFAULTS, "adapt_inp", "dtype", "sample_softmax"}
# Similarity of a misspelt keyword; train.py's other options are less similar to any keyword.
CLOSE = 0.8
# Position scheme of each attn_type.
POSITIONS = ("sinusoidal", "learned", "absolute_sinusoidal", "absolute_learned")
# For each type of a default, the types that a file may have instead.
KINDS = {
    int: ("a number", int | float),
    float: ("a number", int | float),
    bool: ("true or false", bool | int),
    str: ("a word", str),
    list: ("a list", list | tuple),
}

# A weight that every network has, also NVIDIA's; what is before it is the name of a wrapper.
FIRST = "word_emb.emb_layers.0.weight"
# Wrappers that torch puts around modules within a network, too.
WRAPPER = re.compile(r"\b(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")

# Our names (regular expressions) -> the original's.
ORIGINAL_NAMES = {
    r"^embedding\.weight": "word_emb.emb_layers.0.weight",
    r"^embedding\.tables": "word_emb.emb_layers",
    r"^embedding\.projections\.(\d+)\.weight": r"word_emb.emb_projs.\1",
    r"^head\.cluster\.": "crit.cluster_",
    r"^head\.out\.": "crit.out_layers.0.",
    r"^head\.outs": "crit.out_layers",
    r"^head\.down\.weight": "crit.out_projs.0",
    r"^head\.downs\.(\d+)\.weight": r"crit.out_projs.\1",
    r"^positions\.u_NHK": "r_w_bias",
    r"^positions\.v_NHK": "r_r_bias",
    r"^positions\.(r_NCHK|p_NCD)": "r_emb",
    r"^positions\.b_NCH": "r_bias",
    r"^positions\.r_nets\.(\d+)": r"layers.\1.dec_attn.r_net",
    r"feed_forward\.norm_(before|after)": "pos_ff.layer_norm",
    r"feed_forward\.net": "pos_ff.CoreNet",
    r"norm_(before|after)": "dec_attn.layer_norm",
    r"attention": "dec_attn",
}


def load_original(
    state_dict: Mapping[str, Tensor], args: Mapping[str, Any], source: str | Path = "state_dict"
) -> TransformerXL:
    """Load a network of the original PyTorch code (kimiyoung/transformer-xl), in eval mode.

    A warning says that another code's weights have no checksum.

    Args:
        state_dict: the original's tensors under its own names, or these after the name of a wrapper
            (module., _orig_mod., model., ...); their precision is kept.
        args: the keywords that its constructor was called with; null is the default. Other options
            of train.py are ignored; one that looks like a misspelt keyword is an error. tgt_len and
            ext_len are only used for the size of learned positions if they are not in state_dict.
        source: their file, for the warning.

    Raises:
        ValueError: a keyword is misspelt or has a value that the original does not have, or a
            tensor is missing, left over or of another shape; the message names it.
    """
    state_dict = remove_wrappers(state_dict)
    config = config_from_original(args, state_dict.get("r_emb"))
    warn_unverified(Path(source), NO_CHECKSUM)
    ours = contents.match_weights(state_dict, map_original_weights, config)
    return contents.build_network(ours, config)


def remove_wrappers(state_dict: Mapping[str, Tensor], first: str = FIRST) -> dict[str, Tensor]:
    """Return the tensors by their names without those of modules around the network or in it."""
    plain = {name: WRAPPER.sub("", name) for name in state_dict}
    prefix = next((n.removesuffix(first) for n in plain.values() if n.endswith(f".{first}")), "")
    unwrapped = {plain[name].removeprefix(prefix): state_dict[name] for name in state_dict}
    # If two become one, the caller's error has the names of the file.
    return unwrapped if len(unwrapped) == len(state_dict) else dict(state_dict)


def config_from_original(
    args: Mapping[str, Any], table_NC: Tensor | None = None
) -> TransformerXLConfig:
    """Translate the constructor's keywords; `table_NC` is its learned positions, if any."""
    for key in args.keys() - KEYWORDS:
        if close := get_close_matches(str(key), KEYWORDS, cutoff=CLOSE):
            raise ValueError(f"args: {key}: unknown key; did you mean {close[0]}?")
    theirs = fill_settings(args, DEFAULTS, SAME_NAME)
    if missing := [key for key in REQUIRED if key not in theirs]:
        raise ValueError(f"args: {', '.join(missing)} missing; expected the constructor's keywords")
    kind = theirs["attn_type"]
    n_projs = len(theirs["cutoffs"]) + 1
    require(kind in range(4), "attn_type", kind, "0, 1, 2 or 3")
    # With absolute positions, the original does not normalize queries.
    norm = "pre" if kind in (0, 1) else "pre_kv"
    return TransformerXLConfig(
        **{key: theirs[key] for key in SAME_NAME if key in theirs},
        cutoffs=theirs["cutoffs"],
        tie_projs=[*map(bool, theirs["tie_projs"]), *[False] * n_projs][:n_projs],
        positions=POSITIONS[int(kind)],
        norm=norm if theirs["pre_lnorm"] else "post",
        final_norm=False,
        clamp_len=find_greatest_distance(theirs, table_NC),
        same_length="mem_len" if theirs["same_length"] else None,
    )


def fill_settings(
    theirs: Mapping[str, Any], defaults: Mapping[str, Any], numbers: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return settings of the types of their defaults; null or missing ones get the default."""
    settings = {key: value for key, value in theirs.items() if value is not None}
    for key in settings.keys() & {*defaults, *numbers}:
        default_kind = type(defaults.get(key, 0))
        value = settings[key]
        expected, kind = KINDS[default_kind]
        require(isinstance(value, kind), key, repr(value), expected)
        # For example 1 for true, or 512.0 for 512.
        settings[key] = default_kind(value) if default_kind(value) == value else value
    return {**defaults, **settings}


def find_greatest_distance(theirs: Mapping[str, Any], table_NC: Tensor | None) -> int | None:
    """Return our clamp_len; a table of learned positions begins with distance 0."""
    clamp_len = theirs["clamp_len"]
    kind = theirs["attn_type"]
    if kind in (0, 2):
        return clamp_len if clamp_len > 0 else None
    n_row = theirs["tgt_len"] + theirs["ext_len"] + theirs["mem_len"]
    if table_NC is not None:
        n_row = table_NC.shape[1:2].numel()
    require(n_row >= 1, "tgt_len", theirs["tgt_len"], "1 or more, because positions are learned")
    return (min(n_row, clamp_len) if kind == 1 and clamp_len > 0 else n_row) - 1


def map_original_weights(config: TransformerXLConfig) -> WeightMap:
    return contents.map_weights(config, partial(map_original_weight, config))


def map_original_weight(config: TransformerXLConfig, ours: str) -> Part | None:
    part = Part((rename_weight(ours, ORIGINAL_NAMES),), (ours,))
    is_shared = config.positions == "sinusoidal" and not config.untie_r
    match ours.split(".")[-2:]:
        case ["cluster", _]:
            return part._replace(to_ours=flip_rows, to_theirs=flip_rows)
        case ["q_net", _] if not config.is_absolute:
            return Part(
                (part.theirs[0].replace("q_net", "qkv_net"),),
                (ours, ours.replace("q_net", "kv_net")),
                lambda qkv: qkv.tensor_split([qkv.size(0) // 3]),
                lambda q, kv: (torch.cat([q, kv]),),
            )
        case ["kv_net", _] if not config.is_absolute:
            return None
        case ["positions", "r_NCHK" | "b_NCH"]:
            # Rows beyond clamp_len are unused.
            used = slice(-config.n_distance, None)
            return part._replace(
                to_ours=lambda table_NC: flip_table(table_NC[:, used]), to_theirs=flip_table
            )
        case ["positions", "p_NCD"]:
            # The original has them by head; all heads together are as wide as the model.
            return part._replace(
                to_ours=lambda r_NCHK: flip_table(r_NCHK.flatten(2)),
                to_theirs=lambda p_NCD: flip_table(p_NCD.unflatten(2, (config.n_head, -1))),
            )
        case ["positions", "u_NHK" | "v_NHK"] if is_shared:
            return part._replace(
                to_ours=lambda t_HK: (t_HK[None],), to_theirs=lambda t_1HK: (t_1HK[0],)
            )
    return part


def flip_rows(tensor: Tensor) -> Tensors:
    return (tensor.flip(0),)


def flip_table(table_NC: Tensor) -> Tensors:
    """Reverse a learned table: in the other codes it begins with the largest distance."""
    return (table_NC.flip(1),)


def rename_weight(name: str, names: Mapping[str, str]) -> str:
    """Replace, in a name, each regular expression in `names` by its value."""
    for pattern, replacement in names.items():
        name = re.sub(pattern, replacement, name)
    return name


def rename_weights(weights: WeightMap, names: Mapping[str, str]) -> WeightMap:
    rename = partial(rename_weight, names=names)
    parts = [part._replace(theirs=tuple(map(rename, part.theirs))) for part in weights.parts]
    copies = {rename(copy): rename(source) for copy, source in weights.copies.items()}
    return WeightMap(parts, copies)
