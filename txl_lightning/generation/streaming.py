"""Tokens into text as they come: whole characters, and nothing of a stop string."""

from collections import deque
from collections.abc import Iterable, Sequence

from ..data.vocab import Vocabulary


class StreamingDetokenizer:
    """The text of one continuation, token by token, up to the first stop string.

    Args:
        vocab: what tokens are read with.
        before: ids of the text that is continued; they are not part of it.
        stop: texts that end it. Each may begin and end inside tokens.
    """

    def __init__(
        self, vocab: Vocabulary, before: Iterable[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self.stop = [text for text in stop if text]
        self.ended = False
        self.held = ""
        self.ids = deque(before)
        # It must not find the end of the ids before the last one has come.
        self.pieces = vocab.decode_stream(iter(self.ids.popleft, None))
        for _ in tuple(self.ids):
            next(self.pieces)

    def add(self, index: int) -> str:
        """What is certain to be part of the text, now that this token has come."""
        self.ids.append(index)
        return self.certain(next(self.pieces))

    def rest(self) -> str:
        """What was held back, now that no token will come."""
        if self.ended:
            return ""
        self.ids.append(None)
        said = self.certain("".join(self.pieces))
        return said if self.ended else said + self.held

    def certain(self, text: str) -> str:
        """Let out what is no part of a stop string and cannot be the beginning of one."""
        if self.ended:
            return ""
        text = self.held + text
        if found := [span for each in self.stop if (span := first(each, text))]:
            # The one that is whole first, however the text is cut into tokens.
            self.ended, self.held = True, ""
            return text[: min(found)[1]]
        cut = len(text) - max((overlap(text, each) for each in self.stop), default=0)
        self.held = text[cut:]
        return text[:cut]


def first(stop: str, text: str) -> tuple[int, int] | None:
    """Where a stop string first ends and begins in a text."""
    start = text.find(stop)
    return None if start < 0 else (start + len(stop), start)


def overlap(text: str, stop: str) -> int:
    """How many characters of the text's end may be the beginning of a stop string."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
