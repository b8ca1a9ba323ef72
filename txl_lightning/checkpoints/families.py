"""Read a folder that save_pretrained of transformers 5 wrote, of a family that is a network."""

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from ..data.vocab import read_vocabulary_file
from ..errors import require
from ..files import hash_file
from ..model.config import describe_config
from ..networks.transformers_config import HuggingFaceConfig
from ..runs.folder import CONVERTED
from . import contents

TOKENIZER = "tokenizer.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
NO_EFFECT = {
    *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("model_type", "pad_token_id", "bos_token_id", "eos_token_id"),
}
"""Settings in config.json that say nothing of the logits of tokens."""


def find_weights(folder: Path) -> Path:
    """Return the file of the weights, or the index of several; a ValueError if there is none."""
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        raise ValueError(f"{folder}: no weights; expected {WEIGHTS[0]}")
    return found


def hash_weights(folder: Path) -> str:
    """Return the sha256 of the file of the weights; of several, that of their sha256 in order."""
    path = find_weights(folder)
    if path.name == WEIGHTS[0]:
        return hash_file(path)
    with contents.refuse_invalid_values(path):
        names = sorted({*contents.load_json(path)["weight_map"].values()})
    digests = [hash_file(folder / name) for name in names]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the network, as a checkpoint has them.

    The vocabulary is that of tokenizer.json, and may be smaller than the embedding. Settings that
    cannot be read are a CheckpointError.
    """
    path = folder / CONVERTED
    with contents.refuse_damaged(path, f"{path}: not one that transformers reads"):
        theirs = AutoConfig.from_pretrained(folder, local_files_only=True)
    with contents.refuse_invalid_values(path):
        settings = theirs.to_diff_dict() | {"vocab_size": theirs.vocab_size}
        kept = {name: settings[name] for name in settings if name not in NO_EFFECT}
        tokenizer = folder / TOKENIZER
        n_token = theirs.vocab_size
        if tokenizer.is_file():
            n_token = read_vocabulary_file(tokenizer, contents.make_words).n_token
        expected = f"at most {theirs.vocab_size}, as {CONVERTED} says"
        require(n_token <= theirs.vocab_size, f"tokens of {TOKENIZER}", n_token, expected)
        return describe_config(HuggingFaceConfig(n_token, theirs.model_type, kept))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights by the names that the network has; no code in the folder is run."""
    path = find_weights(folder)
    with contents.refuse_damaged(path, f"{path}: damaged, or of another network"):
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            dtype="auto",
            output_loading_info=True,
        )
    with contents.refuse_invalid_values(path):
        missing = contents.list_names({*found["missing_keys"]})
        require(not missing, "weights", f"without {missing}", "all of the network's")
    return {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
