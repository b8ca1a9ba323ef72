"""The documents of a text that was scored, one by one.

K scored tokens   N tokens of the text   T tokens of a document
"""

import json
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from ..data.store import EvalText

N_BEFORE = 7  # tokens that are shown before the most surprising one


def write_documents(text: EvalText, nats_N: np.ndarray, path: Path) -> None:
    """Write a line of JSON for each document of a text."""
    with path.open("w", encoding="utf-8") as file:
        for record in describe_documents(text, nats_N):
            print(json.dumps(record, ensure_ascii=False, allow_nan=False), file=file)


def describe_documents(text: EvalText, nats_N: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield the number, the identifier if there are any, the sizes and the nats of each document.

    nats_N are nan where a token was not scored.
    """
    starts = text.tokens.starts.tolist()
    bounds = zip(starts, [*starts[1:], len(nats_N)], strict=True)
    documents = zip(bounds, read_identifiers(text), strict=False)
    for number, ((start, stop), identifier) in enumerate(documents, 1):
        # With max_tokens, the last documents were not read.
        if start >= len(nats_N):
            return
        nats_T = np.asarray(nats_N[start:stop], np.float64)
        scored_K = np.flatnonzero(~np.isnan(nats_T))
        n_byte = text.count_bytes(start + scored_K)
        record = {"document": number} | identifier
        record |= {"tokens": len(scored_K), "bytes": n_byte}
        record["nats"] = float(nats_T[scored_K].sum())
        record["most_surprising"] = None
        if len(scored_K):
            place = int(scored_K[nats_T[scored_K].argmax()])
            record["most_surprising"] = describe_place(text, start, place, nats_T)
        yield record


def read_identifiers(text: EvalText) -> Iterator[dict[str, Any]]:
    """Yield the field `id` of each document, or nothing where no text has one."""
    if text.identifiers is None:
        yield from repeat({})
        return
    with text.identifiers.open() as file:
        for line in file:
            yield {"id": json.loads(line)}


def describe_place(text: EvalText, start: int, place: int, nats_T: np.ndarray) -> dict[str, Any]:
    """Return a token of a document by its place in it, with the text up to it."""
    first = max(place - N_BEFORE, 0)
    ids = text.tokens.ids_at(np.arange(start + first, start + place + 1))
    shown = text.vocab.decode(ids.tolist())
    return {"token": place, "nats": float(nats_T[place]), "text": shown}
