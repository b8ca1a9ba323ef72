"""Weights of the original PyTorch code (kimiyoung/transformer-xl), under its own names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..model import TransformerXL, TransformerXLConfig

SAME_NAME = [
    "n_token",
    "n_layer",
    "n_head",
    "d_model",
    "d_head",
    "d_inner",
    "mem_len",
    "dropout",
    "dropatt",
    "tie_weight",
]

ONLY = {
    "attn_type": 0,
    "div_val": 1,
    "ext_len": 0,
    "same_length": False,
    "cutoffs": [],
    "untie_r": False,
}
"""Keywords of the original with the one value that can be loaded so far."""

UNUSED = {"pos_emb.inv_freq"}
"""Tensors of the original that are computed here."""

LAYER = {
    "dec_attn.o_net.weight": "attention.o_net.weight",
    "pos_ff.CoreNet.0.weight": "feed_forward.net.0.weight",
    "pos_ff.CoreNet.0.bias": "feed_forward.net.0.bias",
    "pos_ff.CoreNet.3.weight": "feed_forward.net.3.weight",
    "pos_ff.CoreNet.3.bias": "feed_forward.net.3.bias",
}
"""Names inside a layer, theirs and ours."""

NORM = {"dec_attn.layer_norm": "", "pos_ff.layer_norm": "feed_forward."}
"""Normalisations, theirs, and the part of our layer they are in."""


def load_original(state_dict: Mapping[str, Tensor], args: Mapping[str, Any]) -> TransformerXL:
    """A network of the original PyTorch code (kimiyoung/transformer-xl), in eval mode.

    Args:
        state_dict: the original's tensors under its own names; their precision is kept.
        args: the keywords its constructor was called with.

    Raises:
        ValueError: `args` asks for a part that is not here yet, or a tensor is missing.
    """
    config = config_of_original(args)
    model = TransformerXL(config).to(state_dict["word_emb.emb_layers.0.weight"].dtype)
    try:
        model.load_state_dict(rename_original(state_dict, config))
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"state_dict: not the tensors of {dict(args)}: {error}") from error
    return model.eval()


def config_of_original(args: Mapping[str, Any]) -> TransformerXLConfig:
    """Our words for the original's keywords."""
    for key, only in ONLY.items():
        given = args.get(key, only)
        if (list(given) if isinstance(given, tuple) else given) != only:
            raise ValueError(f"{key}: {given} cannot be loaded yet; it must be {only}")
    if args.get("d_embed") not in (None, args["d_model"]):
        raise ValueError(f"d_embed: {args['d_embed']} cannot be loaded yet; it must be d_model")
    return TransformerXLConfig(
        **{key: args[key] for key in SAME_NAME if key in args},
        norm="pre" if args.get("pre_lnorm") else "post",
        final_norm=False,
        clamp_len=args["clamp_len"] if args.get("clamp_len", -1) > 0 else None,
    )


def rename_original(
    original: Mapping[str, Tensor], config: TransformerXLConfig
) -> dict[str, Tensor]:
    """The original's tensors under our names.

    Raises:
        KeyError: one is missing, or one has no place here.
    """
    left = {name: tensor for name, tensor in original.items() if name not in UNUSED}
    embedding = left.pop("word_emb.emb_layers.0.weight")
    softmax = left.pop("crit.out_layers.0.weight", embedding if config.tie_weight else None)
    ours = {
        "embedding.weight": embedding,
        "positions.u_NHK": left.pop("r_w_bias")[None],
        "positions.v_NHK": left.pop("r_r_bias")[None],
        "head.out.weight": softmax,
        "head.out.bias": left.pop("crit.out_layers.0.bias"),
    }
    side = "norm_before" if config.norm == "pre" else "norm_after"
    for n in range(config.n_layer):
        layer = f"layers.{n}."
        q, k, v = left.pop(layer + "dec_attn.qkv_net.weight").chunk(3)
        ours[layer + "attention.q_net.weight"] = q
        ours[layer + "attention.kv_net.weight"] = torch.cat([k, v])
        ours[f"positions.r_nets.{n}.weight"] = left.pop(layer + "dec_attn.r_net.weight")
        for their_name, our_name in LAYER.items():
            ours[layer + our_name] = left.pop(layer + their_name)
        for their_name, where in NORM.items():
            for part in ("weight", "bias"):
                ours[f"{layer}{where}{side}.{part}"] = left.pop(f"{layer}{their_name}.{part}")
    if left or softmax is None:
        raise KeyError(f"left over: {sorted(left)}" if left else "crit.out_layers.0.weight")
    return ours
