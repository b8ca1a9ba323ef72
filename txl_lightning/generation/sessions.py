"""Sessions: texts that come in parts, each read with the memory of all that came before.

B sessions   K tokens that are scored
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.vocab import Vocabulary
from ..errors import NonFiniteError, require, require_positive
from ..model import EvalLengths, Network, eval_mode, find_device, find_network
from ..model.adaptation import Adaptation
from ..model.reading import Reader
from .decoding import Sampling, decode_steps, refuse_unknown_names
from .incoming import IncomingText, ScoredToken, TextToken, join_nats
from .prompts import StreamingDetokenizer, require_several
from .reading_on import read_and_learn, read_together
from .session_file import SavedSession, hash_network, load_session, save_session
from .state import DecodingState, find_missing_memory, start_decoding

STEP_LEN = 64  # tokens after which the weights of a session with a rate take a step


class Sessions:
    """Texts that come in parts, scored and continued by one network: see docs/serve.md.

    >>> model, vocab = load("version_0")
    >>> sessions = Sessions(model, vocab)
    >>> first, second = sessions.open(), sessions.open()
    >>> [token.text for token in first.feed("to be")]
    ['t', 'o', ' ', 'b', 'e']
    >>> [len(tokens) for tokens in sessions.feed_each([first, second], [" or", "not to be"])]
    [3, 9]
    >>> first.save("first.safetensors")
    >>> again = sessions.restore("first.safetensors")
    >>> again.generate(20, seed=1) == first.generate(20, seed=1)
    True

    Each query attends to mem_len states, in whatever parts a text comes: nats are those of
    `stream_nats` with same_length mem_len, or that of training.

    Args:
        model: a network or a LanguageModel; its weights must not change any more.
        vocab: the vocabulary of texts.
        mem_len: memory length; default as in training.
        device: cpu, cuda or another one, to which a copy of the network goes; default its own.
        step_len: tokens after each of which a session with a rate takes a step of its weights.

    Raises:
        ValueError: a network without a memory, with absolute positions, or whose nats depend on
            the segments in which a text is read.
    """

    def __init__(
        self,
        model: Network,
        vocab: Vocabulary,
        *,
        mem_len: int | None = None,
        device: str | torch.device | None = None,
        step_len: int = STEP_LEN,
    ) -> None:
        net = find_network(model)
        require_positive(step_len=step_len)
        reason = find_missing_memory(net, mem_len)
        require(reason is None, "mem_len", mem_len, f"a network that has a memory, but {reason}")
        expected = f"at most the {net.config.n_token} tokens of the network"
        require(vocab.n_token <= net.config.n_token, "vocab", vocab.n_token, expected)
        self.lengths = find_lengths(net, mem_len)
        reason = find_dependence(net, self.lengths.resolve(net.config).mem_len)
        expected = f"a network whose nats do not depend on segments, but {reason}"
        require(reason is None, "model", type(net).__name__, expected)
        self.net = net if device is None else copy_to(net, device)
        self.vocab = vocab
        self.step_len = step_len
        self.reader = Reader(self.net)

    def open(self, adaptation: Adaptation = Adaptation()) -> Session:  # noqa: B008 (frozen)
        """Return a new session, which learns from its own text alone, or from nothing."""
        adaptation.require_used()
        adaptation.require_one_document()
        reader = Reader(self.net, adaptation) if adaptation.adapts else self.reader
        return Session(self, reader)

    def feed_each(
        self, sessions: Sequence[Session], parts: Sequence[str | bytes]
    ) -> list[list[ScoredToken]]:
        """Feed a part to each of several sessions; return what each `feed` would.

        Sessions without adaptation are read together.
        """
        require_several("parts", parts)
        expected = f"{len(sessions)}, one for each session"
        require(len(parts) == len(sessions), "parts", len(parts), expected)
        is_each = len({*sessions}) == len(sessions)
        require(is_each, "sessions", "one session twice", "each session once")
        is_own = all(session.sessions is self for session in sessions)
        require(is_own, "sessions", "one of other Sessions", "those that these Sessions opened")
        with ExitStack() as stack:
            # In one order in all threads, so that none waits for another forever.
            for session in sorted(sessions, key=id):
                stack.enter_context(session.lock)
            pairs = zip(sessions, parts, strict=True)
            added = [each.incoming.add(part, self.vocab) for each, part in pairs]
            return self._read(sessions, added)

    def restore(self, path: str | Path) -> Session:
        """Return the session that was saved, perhaps by another process or on another device.

        CheckpointError if it is damaged, or of other weights, another vocabulary or memory length.
        """
        saved = load_session(Path(path), self._fingerprint)
        session = self.open(saved.adaptation)
        session.incoming = saved.incoming
        session.state = self._restore_state(session.reader, saved)
        return session

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        values = {"weights": hash_network(self.net), "vocabulary": self.vocab.fingerprint}
        lengths = self.lengths.resolve(self.net.config)._asdict()
        return values | lengths | {"step_len": self.step_len}

    def _start(self, reader: Reader, ids_L: Tensor) -> DecodingState:
        """Return the state before the first tokens of a session."""
        memory = reader.empty_memory(1, self.lengths)
        state = start_decoding(self.net, [ids_L], self.lengths.mem_len)
        return replace(state, memory=memory, adaptation=reader.adaptation)

    def _restore_state(self, reader: Reader, saved: SavedSession) -> DecodingState | None:
        if not saved.tensors:
            return None
        device = find_device(self.net)
        tensors = {name: each.to(device) for name, each in saved.tensors.items()}
        if reader.adaptation.rate:
            reader.net.load_state_dict(saved.weights)
        state = self._start(reader, torch.zeros(1, dtype=torch.long)).restore(tensors)
        return replace(state, length_B=state.length_B.cpu())

    @torch.inference_mode()
    def _read(
        self, sessions: Sequence[Session], added: Sequence[tuple[list[TextToken], IncomingText]]
    ) -> list[list[ScoredToken]]:
        """Read the new tokens of sessions, whose locks are held, and change the sessions."""
        states = {}
        for session, (tokens, _) in zip(sessions, added, strict=True):
            if tokens:
                states[session] = session.append(tokens)
        with eval_mode(self.net), undo_steps([session.reader for session in states]):
            read = self._read_states(states)
        results = []
        for session, (tokens, incoming) in zip(sessions, added, strict=True):
            nats_K, session.state = read.get(session, (None, session.state))
            session.incoming = incoming
            results.append(join_nats(tokens, nats_K) if tokens else [])
        return results

    def _read_states(
        self, states: dict[Session, DecodingState]
    ) -> dict[Session, tuple[Tensor, DecodingState]]:
        learning = [session for session in states if session.reader.adaptation.rate]
        read = {
            session: read_and_learn(session.reader, states[session], self.step_len)
            for session in learning
        }
        for session in states:
            if session.reader.adaptation.cache_len and session not in read:
                [read[session]] = read_together(session.reader, [states[session]])
        plain = [session for session in states if session not in read]
        if plain:
            together = read_together(self.reader, [states[session] for session in plain])
            read |= zip(plain, together, strict=True)
        for nats_K, _ in read.values():
            if not nats_K.isfinite().all():
                cause = "the weights of the network are invalid, or the rate is too large"
                raise NonFiniteError(f"the nats are not finite: {cause}")
        return read


class Session:
    """A text that comes in parts, which `open` or `restore` of `Sessions` has returned.

    `feed(part)` and `flush()` return tokens, `generate(max_new_tokens)` a continuation, and
    `save(path)` writes the state. `waiting` is text whose tokens later text may change, and
    `n_character` the number of characters that were fed. Threads may share a session, and are
    served in turn. All else of it is private.

    >>> model, vocab = load("version_0")
    >>> session = Sessions(model, vocab).open(Adaptation(cache_len=99))
    >>> [(token.text, token.stop) for token in session.feed("to be")]
    [('t', 1), ('o', 2), (' ', 3), ('b', 4), ('e', 5)]
    >>> session.n_character, session.waiting, session.flush()
    (5, '', [])
    >>> len(session.generate(9, top_p=0.9, seed=1).encode()) >= 9
    True

    Raises:
        DataError: text that the vocabulary does not know, or bytes that are not UTF-8.
        ValueError: an invalid setting of sampling, nothing to continue, or a character that is not
            complete.
        NonFiniteError: nats or logits that are not finite.
        StorageError: a file that cannot be written.
    """

    def __init__(self, sessions: Sessions, reader: Reader) -> None:
        self.sessions = sessions
        self.reader = reader
        self.incoming = IncomingText()
        self.state: DecodingState | None = None
        self.lock = threading.Lock()

    @property
    def waiting(self) -> str:
        """Text that was fed, and whose tokens later text may change."""
        return self.incoming.waiting

    @property
    def n_character(self) -> int:
        """Characters that were fed, without one whose last bytes have not come."""
        return self.incoming.n_settled + len(self.incoming.waiting)

    def feed(self, part: str | bytes) -> list[ScoredToken]:
        """Read a part of the text; return the tokens that no later text can change, and nats.

        Bytes are UTF-8, and may end within a character. After an error nothing was read.
        """
        return self.sessions.feed_each([self], [part])[0]

    def flush(self) -> list[ScoredToken]:
        """Read what waits, as if a token ended here; return its tokens."""
        with self.lock:
            added = self.incoming.flush(self.sessions.vocab)
            return self.sessions._read([self], [added])[0]

    def generate(self, max_new_tokens: int, **sampling: Any) -> str:
        """Return a continuation of the text, of what waits too; the session does not change.

        Settings of sampling are those of `generate`.
        """
        refuse_unknown_names(sampling)
        vocab = self.sessions.vocab
        with self.lock:
            tokens, _ = self.incoming.flush(vocab)
            require(bool(tokens) or self.state is not None, "text", "none", "a token at least")
            state = self.append(tokens) if tokens else self.state
            # Steps of the weights would need a text that is known.
            state = replace(state, adaptation=replace(state.adaptation, rate=None, decay=None))
            text = StreamingDetokenizer(vocab, state.row_tokens(0).tolist())
            n_before = len(state)
            for after in decode_steps(self.reader.net, state, max_new_tokens, Sampling(**sampling)):
                state = after
        new = state.tokens_BL[0, n_before:].tolist()
        return "".join([*map(text.push, new), text.flush()])

    def save(self, path: str | Path) -> None:
        """Write the session as a safetensors file, atomically; StorageError if that fails."""
        with self.lock:
            adaptation = self.reader.adaptation
            tensors = {} if self.state is None else self.state.tensors()
            has_learned = adaptation.rate and self.state is not None
            weights = self.reader.net.state_dict() if has_learned else {}
            saved = SavedSession(self.incoming, adaptation, tensors, weights)
            save_session(saved, Path(path), self.sessions._fingerprint)

    def append(self, tokens: Sequence[TextToken]) -> DecodingState:
        """Return the state with new tokens, which are not read yet."""
        ids_L = torch.tensor([token.id for token in tokens])
        if self.state is None:
            return self.sessions._start(self.reader, ids_L)
        return self.state.append_tokens(ids_L[None])


@contextmanager
def undo_steps(readers: Sequence[Reader]) -> Iterator[None]:
    """After an error, give the weights that learn the values that they had before."""
    learning = [reader.net for reader in readers if reader.adaptation.rate]
    before = [copy.deepcopy(net.state_dict()) for net in learning]
    try:
        yield
    # Also where a signal or a closed stream stops the steps.
    except BaseException:
        for net, weights in zip(learning, before, strict=True):
            net.load_state_dict(weights)
        raise


def find_lengths(net: Network, mem_len: int | None) -> EvalLengths:
    """Return lengths with which no prediction depends on the parts in which a text is read."""
    config = net.config
    has_choice = getattr(config, "same_length", "") is None
    return EvalLengths(mem_len, same_length="mem_len" if has_choice else None)


def find_dependence(net: Network, mem_len: int) -> str | None:
    """Return why nats depend on the parts in which a text is read, or None if they do not."""
    if getattr(net.config, "memory_source", None) == "same_layer":
        return "memory_source is same_layer"
    depends = getattr(net, "depends_on_segments", None)
    if depends is not None and depends(mem_len):
        return f"tokens may see more than {mem_len} (mem_len) before them"
    return None


def copy_to(net: nn.Module, device: str | torch.device) -> nn.Module:
    """Return a network on a device: itself if it is there."""
    is_there = find_device(net) == torch.empty(0, device=device).device
    return net if is_there else copy.deepcopy(net).to(device)
