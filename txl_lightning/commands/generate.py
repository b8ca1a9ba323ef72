"""generate: continue a prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoints.runs import load_with_vocabulary, read_tgt_len
from ..data.vocab import Vocabulary
from ..errors import require
from ..files import check_file_writable
from ..generation import Sampling, begun, continued, load, save, search
from ..generation.beam import never
from ..generation.state import DecodingState
from ..generation.streaming import StreamingDetokenizer
from ..model import TransformerXL
from ..signals import defer_signals
from .devices import Device, there_is
from .page import Page
from .prompts import given, text_of

UNFINISHED = 64
"""Tokens at a text's end in which a character or word begins that is not whole there."""

USUAL_TGT_LEN = 128
"""What a training segment had, where a checkpoint does not say."""


def generate_command(
    ckpt_path: str,
    prompt: str | None = None,
    prompt_file: str | None = None,
    prompts: str | None = None,
    length: int = 500,
    stop: list[str] | str = (),
    samples: int = 1,
    beams: int | None = None,
    seed: int | None = None,
    memory: str | None = None,
    mem_len: int | None = None,
    ext_len: int | None = None,
    device: Device = None,
    temperature: float = 0.8,
    **sampling: Any,
) -> None:
    """Print text that a trained model continues the prompt with, as it comes.

    Args:
        ckpt_path: A checkpoint written by fit, or a folder written by convert.
        prompt: What to continue; left out, what is piped in, or else the end of a line.
        prompt_file: The file that it is in; - is what is piped in.
        prompts: In place of one, a file with one in each line that is not empty.
        length: Tokens to sample at most.
        stop: A text, or a list of them, before which the continuation ends.
        samples: Continuations to write at once; several are printed when all are whole.
        beams: Search for the likeliest continuation, with so many at each length. Nothing is drawn
            then: temperature, and what follows it here, are not used.
        seed: The same seed prints the same text; of several samples, each one has the next.
        memory: A file for what is remembered of the text, written at the end. If it is there
            already, its text is continued, with the prompt after it if one is given.
        mem_len: States remembered; left out, what the model was trained with.
        ext_len: Tokens read again with each new one. Left out, none; but of absolute positions, or
            without a memory, as many as a segment of the training had before its last one.
        device: Where the model runs; left out, on a GPU if there is one.
        temperature: What logits are divided by; 0 always takes the likeliest token.
        **sampling: As in Sampling.
    """
    check(length, samples, beams, memory)
    check_file_writable("memory", memory)
    how = Sampling(temperature=temperature, **sampling)
    one = (prompt, prompt_file, beams, memory)
    texts = [given(prompt, prompt_file)] if prompts is None else one_by_line(prompts, *one)
    work = opened(ckpt_path, texts, memory, mem_len, ext_len, stop, there_is(device))
    if beams is None:
        steps = sampled(work, length, how, seed, samples)
    else:
        steps = searched(work, length, beams)
    finish(work, steps, samples, memory)


def one_by_line(path: str, *others: Any) -> list[str]:
    """The prompts of a file, one in each line.

    Raises:
        ValueError: there is none, or an option that is about one text is given too.
    """
    alone = "null with prompt, prompt_file, beams or memory"
    require(all(other is None for other in others), "prompts", path, alone)
    lines = [line for line in text_of(path).splitlines() if line]
    require(len(lines) > 0, "prompts", path, "a file with a prompt in each line")
    return lines


def check(length: int, samples: int, beams: int | None, memory: str | None) -> None:
    """Refuse what cannot be, alone or together."""
    require(length >= 0, "length", length, "0 or more")
    require(samples >= 1, "samples", samples, "at least 1")
    require(beams is None or beams >= 1, "beams", beams, "at least 1, or null")
    require(samples == 1 or beams is None, "samples", samples, "1 with beams")
    require(samples == 1 or memory is None, "samples", samples, "1 with memory")


@dataclass(frozen=True)
class Work:
    """Texts to be continued, and what does it."""

    model: TransformerXL
    vocab: Vocabulary
    texts: DecodingState
    ext_len: int
    shown: int
    """How many of its tokens an earlier command has shown."""
    stops: Sequence[str]

    @property
    def ids_B(self) -> list[list[int]]:
        """The texts as they are before they are continued."""
        return [self.texts.row(row).tolist() for row in range(len(self.texts.length_B))]


def opened(
    ckpt_path: str,
    prompts: Sequence[str | None],
    memory: str | None,
    mem_len: int | None,
    ext_len: int | None,
    stop: list[str] | str,
    device: str,
) -> Work:
    """The text of a memory file, with the prompt after it, or the prompts."""
    # Numbers too small to be normal slow a CPU's step several-fold.
    torch.set_flush_denormal(True)
    model, vocab = load_with_vocabulary(ckpt_path)
    model.to(device)
    stops = [stop] if isinstance(stop, str) else stop
    if memory and Path(memory).exists():
        texts, ext_len = load(memory, model, mem_len, ext_len)
        shown = len(texts)
        [prompt] = prompts
        if prompt is not None:
            # What stands before a text's first word does not stand in the middle of it.
            texts = texts.followed_by(encoded(vocab, prompt)[None, vocab.n_start :])
        return Work(model, vocab, texts, ext_len, shown, stops)
    whole = ["\n" if prompt is None else prompt for prompt in prompts]
    texts = begun(model, [encoded(vocab, prompt) for prompt in whole], mem_len)
    if ext_len is None:
        ext_len = usual_ext_len(model, ckpt_path, texts.memory.mem_len)
    return Work(model, vocab, texts, ext_len, 0, stops)


def usual_ext_len(model: TransformerXL, ckpt_path: str, mem_len: int) -> int:
    """What must be read again where memory does not do: as much as in training."""
    if mem_len and not model.config.is_absolute:
        return 0
    return max((read_tgt_len(ckpt_path) or USUAL_TGT_LEN) - 1, 1)


def encoded(vocab: Vocabulary, text: str) -> Tensor:
    """The ids of a prompt."""
    return torch.from_numpy(vocab.encode_text(text, where="prompt").astype("int64"))


def sampled(
    work: Work, length: int, how: Sampling, seed: int | None, samples: int
) -> Iterator[DecodingState]:
    """The texts after each token that is drawn."""
    texts = work.texts.rows(torch.arange(len(work.ids_B)).repeat_interleave(samples))
    # torch's own generator starts from the same number in every process.
    seed = torch.seed() if seed is None else seed
    return continued(work.model, texts, length, how, seed, work.ext_len)


def searched(work: Work, length: int, beams: int) -> Iterator[DecodingState]:
    """The text with the continuation that is found."""
    before = work.ids_B[0][-UNFINISHED:]

    def ended(ids: list[int]) -> bool:
        stream = StreamingDetokenizer(work.vocab, before, work.stops)
        for index in ids:
            stream.add(index)
        return stream.ended

    stop = ended if work.stops else never
    yield search(work.model, work.texts, length, beams, ended=stop, ext_len=work.ext_len)


def finish(work: Work, steps: Iterator[DecodingState], samples: int, memory: str | None) -> None:
    """Show the texts and keep what is remembered, also when a signal stops it."""
    ids_B = [ids for ids in work.ids_B for _ in range(samples)]
    page = Page(work.vocab, ids_B, work.shown, work.stops)
    texts, stopped = work.texts, None
    try:
        for after in steps:
            new_LB = after.tokens_BL[:, len(texts) :].T.tolist()
            # Or what is kept had a token that nobody has seen.
            with defer_signals():
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
