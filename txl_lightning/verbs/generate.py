"""generate: continue a prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoints import load_readable, trained_tgt_len
from ..data.vocab import Vocabulary
from ..generation import Sampling, Texts, TextStream, begun, continued, load, save, search
from ..generation.beam import never
from ..model import TransformerXL, require
from .page import Page
from .prompts import given

UNFINISHED = 64
"""Tokens at a text's end in which a character or word begins that is not whole there."""

USUAL_TGT_LEN = 128
"""What a training segment had, where a checkpoint does not say."""


def generate_verb(
    ckpt_path: str,
    prompt: str | None = None,
    prompt_file: str | None = None,
    length: int = 500,
    stop: list[str] | str = (),
    samples: int = 1,
    beams: int | None = None,
    seed: int | None = None,
    memory: str | None = None,
    mem_len: int | None = None,
    ext_len: int | None = None,
    temperature: float = 0.8,
    **sampling: Any,
) -> None:
    """Print text that a trained model continues the prompt with, as it comes.

    Args:
        ckpt_path: A checkpoint written by fit, or a folder written by convert.
        prompt: What to continue; left out, what is piped in, or else the end of a line.
        prompt_file: The file that it is in; - is what is piped in.
        length: Tokens to sample at most.
        stop: A text, or a list of them, before which the continuation ends.
        samples: Continuations to write at once; several are printed when all are whole.
        beams: Search for the likeliest continuation, with so many at each length. Nothing is drawn
            then: temperature, and what follows it here, are not used.
        seed: Of the draws: the same seed prints the same text; of several samples, each one has
            the next seed. Left out, every text is another one.
        memory: A file for what is remembered of the text, written at the end. If it is there
            already, its text is continued, with the prompt after it if one is given.
        mem_len: States remembered; left out, what the model was trained with.
        ext_len: Tokens read again with each new one. Left out, none; but of absolute positions, or
            without a memory, as many as a segment of the training had before its last one.
        temperature: What logits are divided by; 0 always takes the likeliest token.
        **sampling: As in Sampling.
    """
    check(length, samples, beams, memory)
    how = Sampling(temperature=temperature, **sampling)
    text = given(prompt, prompt_file)
    work = opened(ckpt_path, text, memory, mem_len, ext_len, stop)
    if beams is None:
        steps = sampled(work, length, how, seed, samples)
    else:
        steps = searched(work, length, beams)
    finish(work, steps, samples, memory)


def check(length: int, samples: int, beams: int | None, memory: str | None) -> None:
    """Refuse what cannot be, alone or together."""
    require(length >= 0, "length", length, "0 or more")
    require(samples >= 1, "samples", samples, "at least 1")
    require(beams is None or beams >= 1, "beams", beams, "at least 1, or null")
    require(samples == 1 or beams is None, "samples", samples, "1 with beams")
    require(samples == 1 or memory is None, "samples", samples, "1 with memory")


@dataclass(frozen=True)
class Work:
    """A text to be continued, and what does it."""

    model: TransformerXL
    vocab: Vocabulary
    texts: Texts
    ext_len: int
    shown: int
    """How many of its tokens an earlier command has shown."""
    stops: Sequence[str]

    @property
    def ids(self) -> list[int]:
        """The text as it is before it is continued."""
        return self.texts.row(0).tolist()


def opened(
    ckpt_path: str,
    text: str | None,
    memory: str | None,
    mem_len: int | None,
    ext_len: int | None,
    stop: list[str] | str,
) -> Work:
    """The text of a memory file, with the prompt after it, or the prompt."""
    # Numbers too small to be normal slow a CPU's step several-fold.
    torch.set_flush_denormal(True)
    model, vocab = load_readable(ckpt_path)
    stops = [stop] if isinstance(stop, str) else stop
    if memory and Path(memory).exists():
        texts, ext_len = load(memory, model, mem_len, ext_len)
        shown = len(texts)
        if text is not None:
            # What stands before a text's first word does not stand in the middle of it.
            texts = texts.followed_by(encoded(vocab, text)[None, vocab.n_start :])
        return Work(model, vocab, texts, ext_len, shown, stops)
    texts = begun(model, [encoded(vocab, "\n" if text is None else text)], mem_len)
    if ext_len is None:
        ext_len = usual_ext_len(model, ckpt_path, texts.memory.mem_len)
    return Work(model, vocab, texts, ext_len, 0, stops)


def usual_ext_len(model: TransformerXL, ckpt_path: str, mem_len: int) -> int:
    """What must be read again where memory does not do: as much as in training."""
    if mem_len and not model.config.is_absolute:
        return 0
    return max((trained_tgt_len(ckpt_path) or USUAL_TGT_LEN) - 1, 1)


def encoded(vocab: Vocabulary, text: str) -> Tensor:
    """The ids of a prompt."""
    return torch.from_numpy(vocab.encode_text(text, where="prompt").astype("int64"))


def sampled(
    work: Work, length: int, how: Sampling, seed: int | None, samples: int
) -> Iterator[Texts]:
    """The texts after each token that is drawn."""
    texts = work.texts.rows(torch.zeros(samples, dtype=torch.long))
    # torch's own generator starts from the same number in every process.
    seed = torch.seed() if seed is None else seed
    return continued(work.model, texts, length, how, seed, work.ext_len)


def searched(work: Work, length: int, beams: int) -> Iterator[Texts]:
    """The text with the continuation that is found."""
    before = work.ids[-UNFINISHED:]

    def ended(ids: list[int]) -> bool:
        stream = TextStream(work.vocab, before, work.stops)
        for index in ids:
            stream.add(index)
        return stream.ended

    stop = ended if work.stops else never
    yield search(work.model, work.texts, length, beams, ended=stop, ext_len=work.ext_len)


def finish(work: Work, steps: Iterator[Texts], samples: int, memory: str | None) -> None:
    """Show the texts and keep what is remembered, also when a signal stops it."""
    page = Page(work.vocab, work.ids, work.shown, work.stops, samples)
    texts, stopped = work.texts, None
    try:
        for after in steps:
            new_LB = after.tokens_BL[:, len(texts) :].T.tolist()
            texts = after
            for tokens_B in new_LB:
                page.add(tokens_B)
            if page.ended:
                break
    except SystemExit as signal:
        stopped = signal
    page.end()
    if memory:
        save(memory, work.model, texts, work.ext_len)
    if stopped:
        raise stopped
