"""Text into ids and back: bytes, characters, words and subwords; saved as JSON."""

from .base import Bytes, Characters, Ids, Vocabulary
from .kinds import BUILT_IN, build_vocabulary, load_vocabulary, read_vocabulary_file
from .subwords import SubwordOptions, Subwords, train_subwords
from .words import WordOptions, Words

__all__ = [
    "BUILT_IN", "Bytes", "Characters", "Ids", "SubwordOptions", "Subwords", "Vocabulary",
    "WordOptions", "Words", "build_vocabulary", "load_vocabulary", "read_vocabulary_file",
    "train_subwords",
]  # fmt: skip
