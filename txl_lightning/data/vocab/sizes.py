"""How many bytes of text each token of a vocabulary stands for."""

import json

import numpy as np

from . import Vocabulary
from .characters import Bytes, Characters
from .subwords import Subwords


def token_bytes(vocab: Vocabulary) -> np.ndarray | None:
    """The bytes of each token; None where they depend on what stands around it.

    Words are such: the white space between them is not kept.
    """
    match vocab:
        case Bytes():
            return np.ones(vocab.n_token, np.int64)
        case Characters(alphabet):
            return np.array([len(character.encode()) for character in alphabet])
        case Subwords(tokenizer):
            return subword_bytes(json.loads(tokenizer), vocab.n_token)
    return None


def subword_bytes(tokenizer: dict, n_token: int) -> np.ndarray | None:
    """The bytes of the tokens of a byte-level tokenizer that changes nothing of the text."""
    kind = tokenizer["pre_tokenizer"] or {}
    if tokenizer["normalizer"] or kind.get("type") != "ByteLevel" or kind["add_prefix_space"]:
        return None
    vocab = tokenizer["model"]["vocab"]
    # Of byte pairs, tokens with their ids; of a unigram model, tokens in order with their scores.
    ids = vocab if isinstance(vocab, dict) else {part: n for n, (part, _) in enumerate(vocab)}
    sizes = np.zeros(n_token, np.int64)
    for part, index in ids.items():
        # One character stands for each byte.
        sizes[index] = len(part)
    for added in tokenizer["added_tokens"]:
        sizes[added["id"]] = len(added["content"].encode())
    return sizes
