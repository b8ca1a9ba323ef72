"""Networks and checkpoints of NVIDIA's PyTorch code (DeepLearningExamples)."""

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoints.tensors import of, read_torch, tensors_of
from ..checkpoints.vocabulary import of_words
from ..data.vocab import Vocabulary
from ..model import TransformerXL, TransformerXLConfig
from .original import config_from_keywords, load_named
from .weight_names import Part, WeightMap, flipped, map_original_weights

RENAMED = {
    r"crit\.out_layers\.(\d+)\.bias": r"crit.out_layers_biases.\1",
    r"crit\.out_layers\.(\d+)\.weight": r"crit.out_layers_weights.\1",
}
"""What NVIDIA calls otherwise than the original."""


class Vocab:
    """Stands for NVIDIA's class of this name: it holds what a file says of it, and can nothing."""


STAND_INS = (argparse.Namespace, (Vocab, "utils.vocabulary.Vocab"))


def load_nvidia(path: Path) -> tuple[TransformerXL, Vocabulary | None]:
    """The network, in eval mode, and the vocabulary of a checkpoint_*.pt.

    Raises:
        ValueError: there is no such file.
        CheckpointError: it is something else, damaged, or refused for what it would execute.
    """
    return from_checkpoint(path, read_torch(path, STAND_INS))


def is_nvidia(held: Any) -> bool:
    """Whether this is what a checkpoint of NVIDIA's holds."""
    return isinstance(held, Mapping) and held.keys() >= {"model_state", "model_config"}


def from_checkpoint(path: Path, held: Any) -> tuple[TransformerXL, Vocabulary | None]:
    """The network and vocabulary of what a checkpoint holds."""
    with of(path):
        if not is_nvidia(held):
            raise ValueError("not a checkpoint of NVIDIA's; it must have model_state, model_config")
        model = load_nvidia_state(tensors_of(path, held["model_state"]), dict(held["model_config"]))
        return model, vocabulary_from_words(held.get("vocab"), model.config.n_token)


def load_nvidia_state(state_dict: Mapping[str, Tensor], args: Mapping[str, Any]) -> TransformerXL:
    """A network of NVIDIA's PyTorch code, in eval mode.

    Args:
        state_dict: NVIDIA's tensors under its own names; their precision is kept.
        args: the keywords its constructor was called with.

    Raises:
        ValueError: as of `load_original`.
    """
    config = config_from_keywords(args, state_dict.get("r_emb"))
    # It lets each query see one state more than the original does.
    config = replace(config, same_length="mem_len+1" if config.same_length else None)
    return load_named(state_dict, map_nvidia_weights(config), config)


def map_nvidia_weights(config: TransformerXLConfig) -> WeightMap:
    """NVIDIA's names."""
    parts, copies = map_original_weights(config)
    copies = {renamed(name): source for name, source in copies.items()}
    if config.has_projections:
        # They are there also where the softmax uses none of them.
        shared = "crit.shared_out_projs.{}", "word_emb.emb_projs.{}"
        tables = range(config.n_table)
        copies |= {shared[0].format(i): shared[1].format(i) for i in tables}
    return WeightMap([named(part, config) for part in parts], copies)


def named(part: Part, config: TransformerXLConfig) -> Part:
    """The part as NVIDIA has it."""
    if config.positions == "absolute_learned" and part.theirs == ("r_emb",):
        return flipped("r_emb", "positions.p_NCD", 1)
    return part._replace(theirs=tuple(map(renamed, part.theirs)))


def renamed(name: str) -> str:
    """NVIDIA's name for one of the original's tensors."""
    for theirs, ours in RENAMED.items():
        name = re.sub(theirs, ours, name)
    return name


def vocabulary_from_words(vocab: Any, n_token: int) -> Vocabulary | None:
    """Its words, unless there is no vocabulary.

    Raises:
        ValueError: there is one that is not of words.
    """
    if vocab is None:
        return None
    held = vars(vocab) if isinstance(vocab, Vocab) else {}
    words = held.get("idx2sym")
    if not isinstance(words, list) or held.get("delimiter") is not None:
        raise ValueError("vocab: it must be words between white space")
    return of_words(words, n_token, lower_case=bool(held.get("lower_case")))
