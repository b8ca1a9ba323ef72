"""Nats of continuations after a context, which is read once for all of its candidates.

B candidates   L tokens of the longest one
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..data.stream import IGNORED
from ..data.vocab import Vocabulary
from ..errors import require, require_finite_nats, require_positive
from ..model import Network, eval_mode, find_network
from ..model.adaptation import Adaptation
from ..model.contract import AnyMemory
from ..model.reading import Reader
from .prompts import Prompt, encode_prompt, is_one, require_several
from .state import SEGMENT_LEN, DecodingState, find_missing_memory, read_tokens, start_decoding


def score(
    model: Network,
    contexts: Prompt | list[Prompt],
    continuations: Sequence[Prompt],
    *,
    vocab: Vocabulary | None = None,
    mem_len: int | None = None,
    batch_size: int = 64,
) -> list[Tensor]:
    """Return the nats of each token of the continuations, each after its own context: nats_L.

    >>> model, vocab = load("version_0")
    >>> nats = score(model, "to be or ", ["not", "nothing"], vocab=vocab)
    >>> [len(nats_L) for nats_L in nats]
    [3, 7]

    Equal contexts are read once. With enough memory, the result equals `stream_nats` of a
    context and its continuation, which are encoded separately, whatever else is scored.

    Args:
        model: a network or a LanguageModel; used in eval mode, then its mode is restored.
        contexts: a text or ids for each continuation, of at least one token; or one for all.
        continuations: a list of texts or ids.
        vocab: the vocabulary of texts.
        mem_len: memory length; default as in training.
        batch_size: most continuations that are read at once.

    Raises:
        ValueError: an empty context, a text without vocab, or a network without a memory.
        NonFiniteError: nats that are not finite.
    """
    net = find_network(model)
    require_several("continuations", continuations)
    groups = dict[tuple[int, ...], list[int]]()
    each = [contexts] * len(continuations) if is_one(contexts) else contexts
    expected = f"{len(continuations)}, one for each continuation"
    require(len(each) == len(continuations), "contexts", len(each), expected)
    for number, context in enumerate(each):
        groups.setdefault(tuple(encode_prompt(context, vocab).tolist()), []).append(number)
    ids = [encode_continuation(text, vocab) for text in continuations]
    nats: dict[int, Tensor] = {}
    for context, numbers in groups.items():
        state = start_scoring(net, torch.tensor(context, dtype=torch.long), mem_len)
        scored, _ = score_candidates(net, state, [ids[n] for n in numbers], batch_size)
        nats |= zip(numbers, scored, strict=True)
    return [nats[number] for number in range(len(ids))]


def encode_continuation(text: Prompt, vocab: Vocabulary | None) -> Tensor:
    """Return the ids of a text after another one: without the symbol that begins a document."""
    return encode_prompt(text, vocab)[vocab.n_start if isinstance(text, str) else 0 :].cpu()


def start_scoring(
    model: Network,
    context_L: Tensor,
    mem_len: int | None = None,
    adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
) -> DecodingState:
    """Return the state before a context_L of ids is read, for `score_candidates`.

    >>> model, vocab = load("version_0")
    >>> start_scoring(model, encode_prompt("to be", vocab)).tokens_BL.shape
    torch.Size([1, 5])

    Raises:
        ValueError: an empty context, or a network without a memory that replaces the context.
    """
    model = find_network(model)
    reason = find_missing_memory(model, mem_len)
    require(reason is None, "mem_len", mem_len, f"a network that has a memory, but {reason}")
    return start_decoding(model, [context_L], mem_len, adaptation=adaptation)


@torch.inference_mode()
def score_candidates(
    model: Network | Reader,
    state: DecodingState,
    candidates: Sequence[Tensor],
    batch_size: int = 64,
) -> tuple[list[Tensor], DecodingState]:
    """Return the nats_L of each candidate after the text of a state, and that state, now read.

    >>> model, vocab = load("version_0")
    >>> state = start_scoring(model, encode_prompt("to be or ", vocab))
    >>> candidates = [encode_prompt(text, vocab) for text in ("not", "nothing")]
    >>> nats, state = score_candidates(model, state, candidates)
    >>> [len(nats_L) for nats_L in nats]
    [3, 7]
    >>> state = state.append_tokens(candidates[0][None])

    To carry the memory on, append the ids of the candidate that follows to that state, which keeps
    the last 1,024 of the tokens read. A reader with dynamic evaluation learns from the text of the
    state, and never from candidates.

    Raises:
        ValueError: an id that the network has not.
        NonFiniteError: nats that are not finite.
    """
    require_positive(batch_size=batch_size)
    reader = model
    if not isinstance(model, Reader):
        reader = Reader(find_network(model), state.adaptation)
    ids = torch.cat([torch.zeros(1).long(), *candidates])
    last = reader.config.n_token - 1
    low = int(ids.min())
    high = int(ids.max())
    require(low >= 0 and high <= last, "candidates", f"ids from {low} to {high}", f"0 to {last}")
    nats = list[Tensor]()
    with eval_mode(reader.net):
        # The last token is read with the candidates: it predicts the first token of each.
        if state.n_read < len(state) - 1:
            read = learn_tokens if reader.adaptation.rate else read_tokens
            _, state = read(reader, state, len(state) - 1)
            state = state.drop_read()
        for start in range(0, len(candidates), batch_size):
            nats += score_rows(reader, state, candidates[start : start + batch_size])
    require_finite_nats(all(nats_L.isfinite().all() for nats_L in nats))
    return nats, state


def learn_tokens(reader: Reader, state: DecodingState, end: int) -> tuple[None, DecodingState]:
    """Return the state after the text up to column `end`, of which each segment is learned from."""
    tokens_BT = state.tokens_BL[:, state.n_read : end + 1]
    _, memory = score_in_segments(reader.loss, tokens_BT, state.memory)
    return None, replace(state, memory=memory, n_read=end)


def score_rows(reader: Reader, state: DecodingState, candidates: Sequence[Tensor]) -> list[Tensor]:
    memory = state.memory.rows(torch.zeros(len(candidates), dtype=torch.long))
    last_1 = state.tokens_BL[0, -1:]
    rows = [torch.cat([last_1, ids_L.to(last_1)]) for ids_L in candidates]
    # Padding comes after a candidate, so that none of its tokens attends to it.
    tokens_BT = pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    nats_BL, _ = score_in_segments(reader.score, tokens_BT, memory)
    return [nats_L[: len(ids_L)] for nats_L, ids_L in zip(nats_BL, candidates, strict=True)]


def score_in_segments(
    score: Callable[..., tuple[Tensor, AnyMemory]], tokens_BT: Tensor, memory: AnyMemory
) -> tuple[Tensor, AnyMemory]:
    """Return nats of all tokens but the first, 0 of IGNORED ones, and the memory after them."""
    parts = []
    inputs = tokens_BT[:, :-1].clamp(min=0).split(SEGMENT_LEN, dim=1)
    targets = tokens_BT[:, 1:].split(SEGMENT_LEN, dim=1)
    for inputs_BL, targets_BL in zip(inputs, targets, strict=True):
        nats_BL, memory = score(inputs_BL, targets_BL, memory)
        parts.append(nats_BL)
    return torch.cat(parts, dim=1), memory
