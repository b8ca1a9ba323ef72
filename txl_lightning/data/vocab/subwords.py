"""Parts of words, by Hugging Face's `tokenizers`: trained on a text, or loaded."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from ...errors import DataError
from ..spans import Document
from .reading import between_words, decoded, slices

PIECE = 100_000
"""Characters of a piece that is encoded."""

AT_ONCE = 8
"""Pieces encoded at once, by all cores together."""

LONGEST = 1_000_000
"""Characters without a place to cut between words, after which a piece is cut anywhere."""

SAMPLE = 1_000
"""Characters of a piece to train on; the trainer takes quadratic time for longer words."""

REPLACED = "\ufffd"
"""What the beginning of a character is shown as, which further bytes may yet complete."""


@dataclass(frozen=True)
class SubwordOptions:
    """Which subwords are trained.

    Raises:
        ValueError: what no training can give; the message starts with the field's name.
    """

    n_token: int = 8192
    """Size of the vocabulary; a short text gives a smaller one."""
    train_bytes: int = 20_000_000
    """How much of the training text they are trained on, spread evenly over it."""

    def __post_init__(self) -> None:
        for name, least in (("n_token", 257), ("train_bytes", 1)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name}: invalid {value}; expected at least {least}")


@dataclass(frozen=True)
class Subwords:
    """The tokens of a Hugging Face tokenizer."""

    tokenizer: str = field(repr=False)
    """The text of its tokenizer.json."""
    unit = "subword"
    n_start = 0

    @staticmethod
    def of(tokenizer: dict[str, Any]) -> "Subwords":
        """The tokens of a tokenizer.json that has been parsed.

        Raises:
            DataError: there are none.
        """
        vocab = Subwords(json.dumps(tokenizer))
        if not vocab.n_token:
            raise DataError("vocabulary: the tokenizer has no tokens")
        return vocab

    @cached_property
    def n_token(self) -> int:
        """Not the number of tokens: some tokenizers leave ids out."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    @cached_property
    def unknown(self) -> int | None:
        model = json.loads(self.tokenizer)["model"]
        symbol = model.get("unk_token")
        return model.get("unk_id") if symbol is None else self._tokenizer.token_to_id(symbol)

    def encode(self, document: Document) -> Iterator[np.ndarray]:
        texts = between_words(slices(decoded(document), PIECE), LONGEST)
        while batch := list(islice(texts, AT_ONCE)):
            yield from self._ids(batch, str(document.path))

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"{where}: data.vocab's tokenizer cannot encode it ({error.reason})"
            raise DataError(message) from error
        [ids] = self._ids([text], where)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=False)

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        # What a token's text is may depend on the one before it; a character may need several.
        before, held, said = [], [], 0
        for index in ids:
            held.append(index)
            text = self.decode(before + held)
            settled = text.rstrip(REPLACED)
            new = settled[said:]
            yield new
            said += len(new)
            if new and settled == text:
                before, held = held, []
                said = len(self.decode(before))
        yield self.decode(before + held)[said:]

    def to_json(self) -> str:
        return json.dumps({"kind": "subwords", "tokenizer": json.loads(self.tokenizer)})

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        with _in_words("vocabulary: `tokenizers` cannot read it"):
            tokenizer = Tokenizer.from_str(self.tokenizer)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _ids(self, texts: list[str], where: str) -> list[np.ndarray]:
        dtype = np.min_scalar_type(self.n_token - 1)
        with _in_words(f"{where}: data.vocab's tokenizer cannot encode it"):
            encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype) for encoding in encoded]


def bpe(documents: Callable[[], Iterable[Document]], options: SubwordOptions) -> Subwords:
    """Byte pairs merged by frequency."""
    from tokenizers import models, trainers

    return Subwords.of(_trained(models.BPE(), trainers.BpeTrainer, documents, options))


def unigram(documents: Callable[[], Iterable[Document]], options: SubwordOptions) -> Subwords:
    """The parts that make the text likeliest."""
    from tokenizers import models, trainers

    tokenizer = _trained(models.Unigram(), trainers.UnigramTrainer, documents, options)
    tokenizer["model"]["vocab"] = _settled(tokenizer["model"]["vocab"])
    return Subwords.of(tokenizer)


def sample(documents: Callable[[], Iterable[Document]], n_byte: int) -> Iterator[str]:
    """At most `n_byte` bytes of a text, spread evenly over it."""
    total = sum(len(chunk) for document in documents() for chunk in document.chunks())
    seen = taken = 0
    for document in documents():
        for piece in between_words(slices(decoded(document), SAMPLE), SAMPLE):
            size = len(piece.encode())
            seen += size
            if (taken + size) * total <= n_byte * seen:
                taken += size
                yield piece


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    """Say what `tokenizers` complains of.

    Its complaints have no type of their own but are bare Exceptions; everything else, which does
    have one, is a fault and goes through.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise DataError(f"{what} ({error})") from error


def _trained(
    model: Any,
    trainer: Callable[..., Any],
    documents: Callable[[], Iterable[Document]],
    options: SubwordOptions,
) -> dict[str, Any]:
    """A tokenizer that knows every byte: no text is outside its vocabulary, and all come back."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainer(
        vocab_size=options.n_token,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(sample(documents, options.train_bytes), trainer)
    return json.loads(tokenizer.to_str())


def _settled(scores: list[tuple[str, float | None]]) -> list[tuple[str, float]]:
    """The same scores from every run of the trainer.

    It adds in any order, gives the bytes that the text lacks the lowest score and 0.0001 more from
    one to the next, in any order, and without a text no score at all.
    """
    lowest = min(score or 0.0 for _, score in scores)
    absent = lowest + 256 * 0.0001
    settled = (
        (part, round(lowest if len(part) == 1 and (score or 0.0) < absent else score, 6))
        for part, score in scores
    )
    return sorted(settled, key=lambda pair: (-pair[1], pair[0]))
