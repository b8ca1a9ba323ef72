"""Networks of Hugging Face's TransfoXL (in transformers 4.57 and before)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.tensors import of, read_json, read_tensors, write_tensors
from ..checkpoints.vocabulary import beside
from ..data.vocab import Vocabulary, Words
from ..errors import require
from ..files import write_json, write_text
from ..model import TransformerXL, TransformerXLConfig
from .original import flag, load_named, numbers, present, several
from .weight_names import Part, WeightMap, export_weights, map_original_weights, same

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
MODEL_TYPE = "transfo-xl"
SAME_NAME = (
    "d_embed", "d_head", "d_inner", "d_model", "div_val", "dropatt", "dropout",
    "init_range", "init_std", "mem_len", "n_head", "n_layer", "proj_init_std", "untie_r",
)  # fmt: skip
"""Settings that we have too."""

DEFAULTS = {
    "vocab_size": 267735, "cutoffs": [20000, 40000, 200000], "d_model": 1024, "d_embed": 1024,
    "n_head": 16, "d_head": 64, "d_inner": 4096, "div_val": 4, "pre_lnorm": False, "n_layer": 18,
    "mem_len": 1600, "clamp_len": 1000, "same_length": True, "attn_type": 0, "sample_softmax": -1,
    "dropout": 0.1, "dropatt": 0.0, "untie_r": True, "layer_norm_epsilon": 1e-5,
    "init": "normal", "init_range": 0.01, "init_std": 0.02, "proj_init_std": 0.01,
}  # fmt: skip
"""What a setting is where config.json leaves it out."""


def load_huggingface(folder: Path) -> tuple[TransformerXL, Vocabulary | None]:
    """The network, in eval mode, and the vocabulary of what save_pretrained wrote.

    The vocabulary is vocab.json or vocab.txt; vocab.pkl is never read, because it could execute
    anything.

    Raises:
        ValueError: a file is missing.
        CheckpointError: one is damaged, or refused for what it would execute, or is not of such a
            network.
    """
    held = read_json(folder / "config.json")
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"{folder}: no weights; there must be {' or '.join(WEIGHTS)}")
    with of(folder / "config.json"):
        config = config_from_huggingface(held)
    theirs = read_tensors(path)
    with of(path):
        model = load_named(theirs, map_huggingface_weights(config), config)
    return model, beside(folder, config.n_token)


def save_huggingface(model: TransformerXL, folder: Path, vocab: Vocabulary | None = None) -> None:
    """config.json, model.safetensors and, of words, vocab.txt, for from_pretrained.

    For us there is vocab.json beside. Settings of training that it does not have are left out; they
    change no output.

    Raises:
        ValueError: Hugging Face cannot have such a network; the setting is named.
        StorageError: it cannot be written.
    """
    config = model.config
    check_representable(config)
    names = map_huggingface_weights(config)
    # Biases that all layers share are written for each: it loads every one by its own name.
    tied = {name for name in names.copies if name.startswith("crit.")}
    theirs = export_weights(model.state_dict(), names)
    theirs["transformer.pos_emb.inv_freq"] = inv_freq(config.d_model)
    write_tensors({name: theirs[name] for name in theirs if name not in tied}, folder / WEIGHTS[0])
    held = config_to_huggingface(config) | {"dtype": str(model.probe.dtype).removeprefix("torch.")}
    if vocab is not None:
        write_text(vocab.to_json(), folder / "vocab.json")
    if isinstance(vocab, Words):
        write_text("".join(f"{word}\n" for word in vocab.words), folder / "vocab.txt")
        held["eos_token_id"] = vocab.words.index("<eos>") if "<eos>" in vocab.words else None
    write_json(held, folder / "config.json")


def config_from_huggingface(held: Mapping[str, Any]) -> TransformerXLConfig:
    """Our words for the settings of a config.json.

    Raises:
        ValueError: one that its code cannot run either.
    """
    held = present(held)
    given = DEFAULTS | held
    kind = held.get("model_type")
    require(kind == MODEL_TYPE, "model_type", kind, MODEL_TYPE)
    require(given["attn_type"] == 0, "attn_type", repr(given["attn_type"]), "0")
    cutoffs = several(given, "cutoffs")
    sampled = given["sample_softmax"]
    require(sampled <= 0, "sample_softmax", sampled, "-1")
    clamp_len = numbers(given, ["clamp_len"])["clamp_len"]
    shared = held.get("proj_share_all_but_first", True)
    tie_projs = held.get("tie_projs") or [False] + [shared] * len(cutoffs)
    return TransformerXLConfig(
        **numbers(given, SAME_NAME),
        init=given["init"],
        n_token=held.get("n_token", given["vocab_size"]),
        cutoffs=cutoffs,
        tie_projs=tuple(tie_projs),
        norm="pre" if flag(given, "pre_lnorm") else "post",
        final_norm=False,
        norm_eps=given["layer_norm_epsilon"],
        clamp_len=clamp_len if clamp_len > 0 else None,
        same_length="mem_len" if flag(given, "same_length") else None,
        tie_weight=held.get("tie_word_embeddings", held.get("tie_weight", True)),
    )


def config_to_huggingface(config: TransformerXLConfig) -> dict[str, Any]:
    """config.json, as save_pretrained writes it."""
    cutoffs = list(config.cutoffs)
    widths = {
        "d_embed": config.embed_width,
        "d_head": config.head_width,
        "d_inner": config.inner_width,
    }
    tied = {} if config.tie_weight else {"tie_word_embeddings": False}
    return (
        {key: getattr(config, key) for key in SAME_NAME}
        | widths
        | tied
        | {
            "adaptive": True,
            "architectures": ["TransfoXLLMHeadModel"],
            "attn_type": 0,
            "clamp_len": -1 if config.clamp_len is None else config.clamp_len,
            "cutoffs": cutoffs,
            "eos_token_id": 0,
            "init": config.init,
            "layer_norm_epsilon": config.norm_eps,
            "model_type": MODEL_TYPE,
            "pre_lnorm": config.norm == "pre",
            "same_length": config.same_length is not None,
            "sample_softmax": -1,
            "tie_projs": list(config.tie_projs) or [False] * (len(cutoffs) + 1),
            "vocab_size": config.n_token,
        }
    )


def check_representable(config: TransformerXLConfig) -> None:
    """Refuse what Hugging Face has no setting for."""
    given = {
        "positions": (config.positions, ("sinusoidal",)),
        "norm": (config.norm, ("post", "pre")),
        "final_norm": (config.normalises_output, (False,)),
        "recurrence": (config.recurrence, ("below",)),
        # Of no memory, its queries with same_length would not see even themselves.
        "same_length": (config.same_length, ("mem_len", None) if config.mem_len else (None,)),
    }
    for field, (value, possible) in given.items():
        allowed = " or ".join(map(str, possible))
        require(value in possible, field, value, f"{allowed} for Hugging Face")


def map_huggingface_weights(config: TransformerXLConfig) -> WeightMap:
    """Hugging Face's names: the order of its clusters is ours, and u and v are the layers' own."""
    parts, copies = map_original_weights(config)
    clusters = [same(f"crit.cluster_{kind}", f"head.cluster.{kind}") for kind in ("weight", "bias")]
    own = {part.theirs: part for part in clusters}
    layers = range(config.n_layer)
    for theirs, ours in (("r_w_bias", "positions.u_NHK"), ("r_r_bias", "positions.v_NHK")):
        of_layers = tuple(f"layers.{n}.dec_attn.{theirs}" for n in layers)
        if config.untie_r:
            own[theirs,] = stacked(of_layers, ours)
        else:
            copies = copies | dict.fromkeys(of_layers, theirs)
    renamed = [own.get(part.theirs, part) for part in parts]
    return WeightMap(
        [part._replace(theirs=tuple(map(prefixed, part.theirs))) for part in renamed],
        {prefixed(name): prefixed(source) for name, source in copies.items()},
    )


def stacked(theirs: tuple[str, ...], ours: str) -> Part:
    """One tensor of ours that is several of theirs."""
    return Part(theirs, (ours,), lambda *each: (torch.stack(each),), lambda whole: whole.unbind(0))


def prefixed(name: str) -> str:
    """Its name in the model with a softmax."""
    return name if name.startswith("crit.") else f"transformer.{name}"


def inv_freq(d_model: int) -> torch.Tensor:
    """The frequencies of its sinusoids, which its checkpoints hold."""
    return 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
