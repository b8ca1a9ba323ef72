"""Networks and checkpoints of NVIDIA's PyTorch code (DeepLearningExamples)."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoints import contents
from ..checkpoints.contents import Part, WeightMap
from ..checkpoints.saving import warn_unverified
from ..data.vocab import Vocabulary
from ..model import TransformerXL, TransformerXLConfig
from . import original

# Where NVIDIA's names differ from the original's.
NVIDIA_NAMES = {
    r"out_layers\.(\d+)\.bias": r"out_layers_biases.\1",
    r"out_layers\.(\d+)\.weight": r"out_layers_weights.\1",
}


class Vocab:
    """Placeholder for NVIDIA's class of this name: it stores values and has no methods."""


STAND_INS = (argparse.Namespace, (Vocab, "utils.vocabulary.Vocab"))


def load_nvidia_checkpoint(path: Path, content: Any) -> tuple[TransformerXL, Vocabulary | None]:
    with contents.refuse_invalid_values(path):
        weights = contents.require_tensors(path, content["model_state"])
        model = load_nvidia(weights, dict(content["model_config"]), path)
        return model, convert_vocabulary(content.get("vocab"), model.config.n_token)


def load_nvidia(
    state_dict: Mapping[str, Tensor], args: Mapping[str, Any], source: str | Path = "state_dict"
) -> TransformerXL:
    """Load a network of NVIDIA's PyTorch code, as `load_original` does of the original's."""
    state_dict = original.remove_wrappers(state_dict)
    config = original.config_from_original(args, state_dict.get("r_emb"))
    # Each query attends to one more state than in the original.
    config = replace(config, same_length="mem_len+1" if config.same_length else None)
    warn_unverified(Path(source), original.NO_CHECKSUM)
    ours = contents.match_weights(state_dict, map_nvidia_weights, config)
    return contents.build_network(ours, config)


def map_nvidia_weights(config: TransformerXLConfig) -> WeightMap:
    parts, copies = original.rename_weights(original.map_original_weights(config), NVIDIA_NAMES)
    if config.has_projections:
        # They exist even if the softmax does not use them.
        for i in range(config.n_table):
            copies[f"crit.shared_out_projs.{i}"] = f"word_emb.emb_projs.{i}"
    # NVIDIA's learned positions are shared by all heads.
    names = ("positions.p_NCD",)
    own = Part(("r_emb",), names, original.flip_table, original.flip_table)
    return WeightMap([own if part.ours == names else part for part in parts], copies)


def convert_vocabulary(vocab: Any, n_token: int) -> Vocabulary | None:
    if vocab is None:
        return None
    content = vars(vocab) if isinstance(vocab, Vocab) else {}
    words = content.get("idx2sym")
    if not isinstance(words, list) or content.get("delimiter") is not None:
        raise ValueError("vocab: invalid kind; expected words separated by white space")
    vocab = contents.make_words(words, bool(content.get("lower_case")))
    return contents.require_size(vocab, n_token)
