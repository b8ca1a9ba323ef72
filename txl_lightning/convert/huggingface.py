"""Networks of Hugging Face's TransfoXL (in transformers 4.57 and before)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..checkpoints import contents
from ..checkpoints.contents import Part, WeightMap, export_weights
from ..checkpoints.saving import warn_unverified
from ..data.vocab import Vocabulary, Words
from ..errors import require
from ..files import write_json, write_text
from ..model import TransformerXL, TransformerXLConfig
from .original import (
    FIRST,
    NO_CHECKSUM,
    fill_settings,
    map_original_weights,
    remove_wrappers,
    rename_weights,
)

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
MODEL_TYPE = "transfo-xl"
# Settings that have the same names here.
SAME_NAME = (
    "d_embed", "d_head", "d_inner", "d_model", "div_val", "dropatt", "dropout", "init",
    "init_range", "init_std", "mem_len", "n_head", "n_layer", "proj_init_std", "untie_r",
)  # fmt: skip
# Defaults of settings that config.json omits.
DEFAULTS = {
    "vocab_size": 267735, "cutoffs": [20000, 40000, 200000], "d_model": 1024, "d_embed": 1024,
    "n_head": 16, "d_head": 64, "d_inner": 4096, "div_val": 4, "pre_lnorm": False, "n_layer": 18,
    "mem_len": 1600, "clamp_len": 1000, "same_length": True, "attn_type": 0, "sample_softmax": -1,
    "dropout": 0.1, "dropatt": 0.0, "untie_r": True, "layer_norm_epsilon": 1e-5,
    "init": "normal", "init_range": 0.01, "init_std": 0.02, "proj_init_std": 0.01,
    "proj_share_all_but_first": True, "tie_weight": True, "tie_word_embeddings": True,
}  # fmt: skip


def load_huggingface(folder: Path) -> tuple[TransformerXL, Vocabulary | None]:
    """Load the network, in eval mode, and the vocabulary, if any, from a save_pretrained folder.

    The vocabulary is vocab.json or vocab.txt; vocab.pkl is never read, because it could execute
    code. A warning says that another code's files have no checksum. Errors are as in
    `load_any_checkpoint`.
    """
    settings = contents.load_json(folder / "config.json")
    with contents.refuse_invalid_values(folder / "config.json"):
        config = config_from_huggingface(settings)
    path = next((folder / name for name in WEIGHTS if contents.has_tensors(folder / name)), None)
    if path is None:
        raise ValueError(f"{folder}: no weights; expected {' or '.join(WEIGHTS)}")
    saved = contents.require_tensors(path, contents.load_content(path))
    weights = remove_wrappers(saved, f"transformer.{FIRST}")
    with contents.refuse_invalid_values(path):
        ours = contents.match_weights(weights, map_huggingface_weights, config)
        model = contents.build_network(ours, config)
    warn_unverified(folder, NO_CHECKSUM)
    return model, contents.load_vocabulary_in(folder, config.n_token)


def save_huggingface(model: TransformerXL, folder: Path, vocab: Vocabulary | None = None) -> None:
    """Write config.json, model.safetensors and, for words, vocab.txt, for from_pretrained.

    It also writes our vocab.json. Training settings unknown to Hugging Face are left out; a network
    that it cannot represent is a ValueError.
    """
    settings = config_to_huggingface(model.config)
    names = map_huggingface_weights(model.config)
    weights = export_weights(model.state_dict(), names)
    # Biases shared by all layers are written once per layer, under the names that it loads.
    tied = {name for name in names.copies if name.startswith("crit.")}
    theirs = {name: weights[name] for name in weights if name not in tied}
    even_D = torch.arange(0.0, model.config.d_model, 2.0)
    theirs["transformer.pos_emb.inv_freq"] = 1 / (10000 ** (even_D / model.config.d_model))
    contents.save_tensors(theirs, folder / WEIGHTS[0])
    settings["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    if vocab is not None:
        write_text(vocab.to_json(), folder / "vocab.json")
    if isinstance(vocab, Words):
        write_text("".join(f"{word}\n" for word in vocab.words), folder / "vocab.txt")
        settings["eos_token_id"] = vocab.words.index("<eos>") if "<eos>" in vocab.words else None
    write_json(settings, folder / "config.json")


def config_from_huggingface(settings: Mapping[str, Any]) -> TransformerXLConfig:
    """Translate the settings of a config.json; refuse settings that its own code cannot run."""
    kind = settings.get("model_type")
    require(kind == MODEL_TYPE, "model_type", kind, MODEL_TYPE)
    theirs = fill_settings(settings, DEFAULTS)
    require(theirs["attn_type"] == 0, "attn_type", theirs["attn_type"], "0")
    require(theirs["sample_softmax"] <= 0, "sample_softmax", theirs["sample_softmax"], "-1")
    shared = [theirs["proj_share_all_but_first"]] * len(theirs["cutoffs"])
    return TransformerXLConfig(
        **{key: theirs[key] for key in SAME_NAME},
        n_token=theirs.get("n_token", theirs["vocab_size"]),
        cutoffs=theirs["cutoffs"],
        tie_projs=theirs.get("tie_projs") or [False, *shared],
        norm="pre" if theirs["pre_lnorm"] else "post",
        final_norm=False,
        norm_eps=theirs["layer_norm_epsilon"],
        clamp_len=theirs["clamp_len"] if theirs["clamp_len"] > 0 else None,
        same_length="mem_len" if theirs["same_length"] else None,
        tie_weight=theirs["tie_word_embeddings"] and theirs["tie_weight"],
    )


def config_to_huggingface(config: TransformerXLConfig) -> dict[str, Any]:
    """Return the settings as in save_pretrained's config.json; refuse other networks."""
    is_final = config.has_final_norm and config.final_norm is None
    require(not is_final, "norm", config.norm, "post for Hugging Face, or final_norm false")
    for key, value, possible in (
        ("positions", config.positions, ("sinusoidal",)),
        ("norm", config.norm, ("post", "pre")),
        ("final_norm", config.has_final_norm, (False,)),
        ("memory_source", config.memory_source, ("layer_below",)),
        # Without memory, its queries with same_length would not attend even to themselves.
        ("same_length", config.same_length, ("mem_len", None) if config.mem_len else (None,)),
    ):
        allowed = f"{' or '.join(map(str, possible))} for Hugging Face"
        require(value in possible, key, value, allowed)
    return {
        **{key: getattr(config, key) for key in SAME_NAME},
        **({} if config.tie_weight else {"tie_word_embeddings": False}),
        "adaptive": True,
        "architectures": ["TransfoXLLMHeadModel"],
        "attn_type": 0,
        "clamp_len": -1 if config.clamp_len is None else config.clamp_len,
        "cutoffs": list(config.cutoffs),
        "d_embed": config.embed_width,
        "d_head": config.head_width,
        "d_inner": config.inner_width,
        "eos_token_id": 0,
        "layer_norm_epsilon": config.norm_eps,
        "model_type": MODEL_TYPE,
        "pre_lnorm": config.norm == "pre",
        "same_length": config.same_length is not None,
        "sample_softmax": -1,
        "tie_projs": list(config.tie_projs) or [False] * (len(config.cutoffs) + 1),
        "vocab_size": config.n_token,
    }


def map_huggingface_weights(config: TransformerXLConfig) -> WeightMap:
    """Return its names of weights: clusters in our order, and u and v for each layer."""
    parts, copies = map_original_weights(config)
    for index, part in enumerate(parts):
        name = part.theirs[0]
        if name.startswith("crit.cluster"):
            parts[index] = Part(part.theirs, part.ours)
        elif name in ("r_w_bias", "r_r_bias"):
            names = tuple(f"layers.{n}.dec_attn.{name}" for n in range(config.n_layer))
            if config.untie_r:
                parts[index] = Part(names, part.ours, lambda *u: (torch.stack(u),), torch.unbind)
            else:
                copies |= dict.fromkeys(names, name)
    return rename_weights(WeightMap(parts, copies), {"^(?!crit)": "transformer."})
