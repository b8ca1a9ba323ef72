"""What generate shows of the texts it writes."""

from collections.abc import Iterable, Sequence
from itertools import islice

from ..data.vocab import Vocabulary
from ..generation.streaming import StreamingDetokenizer


class Page:
    """Shows one text as it comes, or several when they are whole.

    Args:
        vocab: what tokens are read with.
        ids_B: the texts that are continued.
        shown: how many of a text's ids are not shown, because an earlier command has shown them.
        stop: texts before which a continuation ends.
    """

    def __init__(
        self, vocab: Vocabulary, ids_B: Sequence[Sequence[int]], shown: int, stop: Sequence[str]
    ) -> None:
        self.streams = [StreamingDetokenizer(vocab, ids, stop) for ids in ids_B]
        self.texts = [""] * len(ids_B)
        self.say(["".join(islice(vocab.decode_stream(ids), shown, len(ids))) for ids in ids_B])

    @property
    def ended(self) -> bool:
        """Whether every continuation has come to a stop string."""
        return all(stream.ended for stream in self.streams)

    def add(self, tokens_B: Iterable[int]) -> None:
        """The next token of each continuation."""
        self.say([stream.add(t) for stream, t in zip(self.streams, tokens_B, strict=True)])

    def end(self) -> None:
        """No token will come."""
        self.say([stream.rest() for stream in self.streams])
        if len(self.texts) == 1:
            print()
            return
        for number, text in enumerate(self.texts, 1):
            print(f"--- {number} ---\n{text}\n")

    def say(self, new_B: Sequence[str]) -> None:
        """Show what is new, or keep it."""
        if len(self.texts) == 1:
            print(new_B[0], end="", flush=True)
        else:
            self.texts = [text + new for text, new in zip(self.texts, new_B, strict=True)]
