"""generate: continue a prompt."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoints.runs import load_with_vocabulary, read_tgt_len, sha256_of_weights
from ..data.vocab import Vocabulary
from ..errors import require
from ..files import check_file_writable
from ..generation import (
    DecodingState,
    Sampling,
    StreamingDetokenizer,
    decode_steps,
    search_beams,
    start_decoding,
)
from ..generation.state_file import load_state, save_state
from ..model import TransformerXL
from ..signals import defer_signals
from .inputs import Device, pick_device, read_prompt, read_prompt_lines

UNFINISHED = 64
"""Last tokens of a text among which an unfinished character or word may begin."""
NULL_WITH_OTHERS = "null with prompt, prompt_file, num_beams or state_file"
DEFAULT_TGT_LEN = 128
"""Segment length of the training, where a checkpoint does not name it."""


def generate_command(
    ckpt_path: str,
    prompt: str | None = None,
    prompt_file: str | None = None,
    prompts: str | None = None,
    max_new_tokens: int = 500,
    stop: list[str] | str = (),
    num_samples: int = 1,
    num_beams: int | None = None,
    seed: int | None = None,
    state_file: str | None = None,
    mem_len: int | None = None,
    ext_len: int | None = None,
    device: Device = None,
    temperature: float = 0.8,
    **sampling: Any,
) -> None:
    """Print the continuation of a prompt while it is generated.

    Args:
        ckpt_path: A checkpoint written by fit, or a folder written by convert.
        prompt: Text to continue; left out, the standard input if it is piped, or else a line end.
        prompt_file: File with the prompt; - is the standard input.
        prompts: File with a prompt in each line that is not empty, in place of one prompt.
        max_new_tokens: Most tokens to generate.
        stop: A text, or a list of them, before which the continuation ends.
        num_samples: Continuations of each prompt; several are printed when all are complete.
        num_beams: Search for the likeliest continuation with this many beams, instead of sampling.
        seed: The same seed prints the same text; each further sample has the next number.
        state_file: File for text and memory, written at the end; if it exists, its text continues.
        mem_len: States remembered; left out, as in training.
        ext_len: Tokens read again with each new one; left out, what the memory cannot replace.
        device: Device of the model; left out, a GPU if there is one.
        temperature: Divisor of the logits; 0 always takes the likeliest token.
        **sampling: As in Sampling.
    """
    alone = all(option is None for option in (prompt, prompt_file, num_beams, state_file))
    require(prompts is None or alone, "prompts", prompts, NULL_WITH_OTHERS)
    is_single = num_beams is not None or state_file is not None
    check_counts(max_new_tokens, num_samples, num_beams, is_single)
    check_file_writable("state_file", state_file)
    settings = Sampling(temperature=temperature, **sampling)
    texts = [read_prompt(prompt, prompt_file)] if prompts is None else read_prompt_lines(prompts)
    job = open_job(ckpt_path, texts, state_file, mem_len, ext_len, pick_device(device))
    job = replace(job, stop=[stop] if isinstance(stop, str) else stop)
    if num_beams is None:
        steps = job.sample(max_new_tokens, settings, seed, num_samples)
    else:
        steps = job.search(max_new_tokens, num_beams)
    print_steps(job, steps, num_samples, state_file)


def check_counts(
    max_new_tokens: int, num_samples: int, num_beams: int | None, is_single: bool
) -> None:
    """Refuse invalid counts before a checkpoint is loaded."""
    require(max_new_tokens >= 0, "max_new_tokens", max_new_tokens, "0 or more")
    require(num_samples >= 1, "num_samples", num_samples, "at least 1")
    is_allowed = num_samples == 1 or not is_single
    require(is_allowed, "num_samples", num_samples, "1 with beams or state_file")
    require(num_beams is None or num_beams >= 1, "num_beams", num_beams, "at least 1, or null")


@dataclass(frozen=True)
class Job:
    """Texts to continue, and the model and vocabulary that continue them."""

    model: TransformerXL
    vocab: Vocabulary
    state: DecodingState
    ext_len: int
    weights_sha256: str = ""
    n_printed: int = 0
    """Tokens that an earlier command has printed."""
    stop: Sequence[str] = ()

    def sample(
        self, max_new_tokens: int, sampling: Sampling, seed: int | None, num_samples: int
    ) -> Iterator[DecodingState]:
        rows = torch.arange(len(self.state.length_B)).repeat_interleave(num_samples)
        # torch's generator starts from the same number in every process.
        seed = torch.seed() if seed is None else seed
        state = self.state.select_rows(rows)
        return decode_steps(self.model, state, max_new_tokens, sampling, seed, self.ext_len)

    def search(self, max_new_tokens: int, num_beams: int) -> Iterator[DecodingState]:
        """Yield the state with the likeliest continuation found."""
        prefix = self.state.row_tokens(0)[-UNFINISHED:].tolist()

        def has_stop(ids: list[int]) -> bool:
            text = StreamingDetokenizer(self.vocab, prefix, self.stop)
            for index in ids:
                text.push(index)
            return text.ended

        options = {"is_finished": has_stop if self.stop else None, "ext_len": self.ext_len}
        yield search_beams(self.model, self.state, max_new_tokens, num_beams, **options)


def open_job(
    ckpt_path: str,
    prompts: Sequence[str | None],
    state_file: str | None,
    mem_len: int | None,
    ext_len: int | None,
    device: str,
) -> Job:
    """Load the checkpoint, and start from the prompts or from a state file."""
    model, vocab = load_with_vocabulary(ckpt_path)
    model.to(device)
    sha256 = sha256_of_weights(ckpt_path) if state_file else ""
    if state_file and Path(state_file).exists():
        state, ext_len = load_state(Path(state_file), model, sha256, mem_len, ext_len)
        n_printed, [prompt] = len(state), prompts
        if prompt is not None:
            # The symbol that begins a text does not belong into the middle of one.
            state = state.append_tokens(encode_prompt(vocab, prompt)[None, vocab.n_start :])
        return Job(model, vocab, state, ext_len, sha256, n_printed)
    ids = [encode_prompt(vocab, "\n" if text is None else text) for text in prompts]
    state = start_decoding(model, ids, mem_len)
    if ext_len is None:
        needs_context = model.config.is_absolute or not state.memory.mem_len
        tgt_len = read_tgt_len(ckpt_path) or DEFAULT_TGT_LEN
        ext_len = max(tgt_len - 1, 1) if needs_context else 0
    return Job(model, vocab, state, ext_len, sha256)


class Printer:
    """Prints one text while it is generated, or several when all are complete."""

    def __init__(self, job: Job, num_samples: int) -> None:
        rows = torch.arange(len(job.state.length_B)).repeat_interleave(num_samples)
        ids_B = [job.state.row_tokens(row).tolist() for row in rows]
        pieces_B = [islice(job.vocab.decode_stream(ids), job.n_printed, len(ids)) for ids in ids_B]
        self.streams = [StreamingDetokenizer(job.vocab, ids, job.stop) for ids in ids_B]
        self.texts = [""] * len(ids_B)
        self.print_new(["".join(pieces) for pieces in pieces_B])

    def add_tokens(self, tokens_B: Iterable[int]) -> None:
        self.print_new([s.push(token) for s, token in zip(self.streams, tokens_B, strict=True)])

    def finish(self) -> None:
        """Print what was withheld, and several texts with their numbers."""
        self.print_new([stream.flush() for stream in self.streams])
        if len(self.texts) == 1:
            print()
            return
        for number, text in enumerate(self.texts, 1):
            print(f"--- {number} ---\n{text}\n")

    def print_new(self, new_B: Sequence[str]) -> None:
        """Print a single text's new part, or keep those of several."""
        if len(self.texts) == 1:
            print(new_B[0], end="", flush=True)
        else:
            self.texts = [text + new for text, new in zip(self.texts, new_B, strict=True)]


def print_steps(
    job: Job, steps: Iterator[DecodingState], num_samples: int, state_file: str | None
) -> None:
    """Print each step and save the last state, also when a signal ends it."""
    printer, state, stopped = Printer(job, num_samples), job.state, None
    try:
        for after in steps:
            new_LB = after.tokens_BL[:, len(state) :].T.tolist()
            # Or the file would hold a token that was never printed.
            with defer_signals():
                state = after
                for tokens_B in new_LB:
                    printer.add_tokens(tokens_B)
            if all(stream.ended for stream in printer.streams):
                break
    except SystemExit as signal:
        stopped = signal
    printer.finish()
    if state_file:
        save_state(Path(state_file), state, job.weights_sha256, job.ext_len)
    if stopped:
        raise stopped


def encode_prompt(vocab: Vocabulary, text: str) -> Tensor:
    return torch.from_numpy(vocab.encode_text(text, where="prompt").astype("int64"))
