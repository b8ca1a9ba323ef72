"""Incremental detokenization: whole characters only, up to a stop string."""

from collections import deque
from collections.abc import Iterable, Sequence

from ..data.vocab import Vocabulary


class StreamingDetokenizer:
    """The text of one continuation, token by token, up to the first stop string.

    Args:
        vocab: vocabulary of the ids.
        prefix: ids before the continuation; `prefix_pieces` has the text of each.
        stop: strings that end the text. Each may begin and end inside tokens.
    """

    def __init__(
        self, vocab: Vocabulary, prefix: Iterable[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self.stop = [text for text in stop if text]
        self.ended = False
        self._withheld = ""
        self._ids = deque(prefix)
        # None, from flush, ends the iterator; popping from an empty queue would raise.
        self._pieces = vocab.decode_stream(iter(self._ids.popleft, None))
        self.prefix_pieces = [next(self._pieces) for _ in tuple(self._ids)]

    def push(self, index: int) -> str:
        """Add a token; return the text that can no longer change."""
        self._ids.append(index)
        return self.push_text(next(self._pieces))

    def flush(self) -> str:
        """End the continuation; return the withheld text."""
        self._ids.append(None)
        return self.push_text("".join(self._pieces)) + self._withheld

    def push_text(self, text: str) -> str:
        """Add text; withhold stop strings and their possible beginnings from the result."""
        if self.ended:
            return ""
        text = self._withheld + text
        ends = [(at + len(stop), at) for stop in self.stop if (at := text.find(stop)) >= 0]
        if ends:
            # The stop string that is complete first, independent of token boundaries.
            self.ended, self._withheld = True, ""
            return text[: min(ends)[1]]
        beginnings = (stop[:n] for stop in self.stop for n in range(1, len(stop)))
        cut = len(text) - max((len(part) for part in beginnings if text.endswith(part)), default=0)
        self._withheld = text[cut:]
        return text[:cut]
