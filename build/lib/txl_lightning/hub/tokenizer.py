"""Subwords and bytes as a fast tokenizer of transformers."""

import json
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ..data.vocab import Bytes, Subwords, Vocabulary, load_vocabulary
from ..errors import DataError
from ..runs.folder import VOCAB

FAST = "subwords or bytes: other vocabularies have no fast tokenizer"


class TXLTokenizer(transformers.PreTrainedTokenizerFast):
    """The vocabulary of a folder, if it has subwords or bytes; a DataError for any other."""

    vocab_files_names = {"vocab_file": VOCAB, "tokenizer_file": "tokenizer.json"}  # noqa: RUF012
    padding_side = "left"

    @classmethod
    def convert_to_native_format(
        cls, vocab_file: str | None = None, tokenizer_file: str | None = None, **options: Any
    ) -> dict[str, Any]:
        if tokenizer_file is not None:
            return options | {"tokenizer_file": tokenizer_file}
        if vocab_file is None:
            raise DataError(f"{VOCAB}: missing; expected {FAST}")
        vocab = load_vocabulary(Path(vocab_file).read_text(encoding="utf-8"))
        return options | {"tokenizer_object": make_tokenizer(vocab)}


def make_tokenizer(vocab: Vocabulary) -> Tokenizer:
    """Return a tokenizer with the ids of a vocabulary, which adds no symbols."""
    match vocab:
        case Subwords():
            plain = dict.fromkeys(("post_processor", "truncation", "padding"))
            return Tokenizer.from_str(json.dumps(json.loads(vocab.tokenizer) | plain))
        case Bytes():
            # ByteLevel writes bytes that are no printable character as characters from 256 on.
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            others = iter(sorted(char for char in alphabet if ord(char) > 255))
            chars = [chr(n) if chr(n) in alphabet else next(others) for n in range(256)]
            tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(chars)}, []))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
            tokenizer.decoder = decoders.ByteLevel()
            return tokenizer
    raise DataError(f"{VOCAB}: invalid {vocab.unit}s; expected {FAST}")
