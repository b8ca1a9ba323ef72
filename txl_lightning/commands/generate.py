"""generate: continue a prompt."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import generation
from ..checkpoints.runs import find_checkpoint, sha256_of_weights
from ..data.vocab import Vocabulary
from ..errors import require, require_at_least
from ..files import check_file_writable
from ..generation.state import DecodingState, find_missing_memory, load_state, save_state
from ..model import TransformerXL, Weights
from ..signals import defer_signals
from .inputs import Device, find_tgt_len, load_model, read_prompt, read_prompt_lines

UNFINISHED = 64
"""Last tokens of a text among which an unfinished character or word may begin."""


@dataclass(frozen=True)
class TextOptions(generation.Sampling):
    """Settings of each prompt's continuation."""

    temperature: float = 0.8
    max_new_tokens: int = 500
    """Most tokens to generate."""
    stop: list[str] | str = ()
    """A text, or a list of them, before which the continuation ends."""
    num_samples: int = 1
    """Continuations of each prompt; several are printed when all are complete."""
    num_beams: int | None = None
    """Search for the likeliest continuation with this many beams, instead of sampling."""
    state_file: Path | None = None
    """File for text and memory, written at the end; if it exists, its text continues."""
    mem_len: int | None = None
    """States remembered; left out, as in training."""
    ext_len: int | None = None
    """Tokens read again with each new one; left out, what the memory cannot replace."""
    raw: bool = False
    """Let a terminal obey the control characters of a text; a pipe gets them in any case."""
    device: Device = None
    """Device of the model; left out, a GPU if there is one."""
    weights: Weights = "float32"
    """Precision of the layers' weights: bf16 and int8 are faster on a CPU, less exact."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, max_new_tokens=0, num_samples=1, num_beams=1)
        is_single = self.num_beams is not None or self.state_file is not None
        is_allowed = self.num_samples == 1 or not is_single
        require(is_allowed, "num_samples", self.num_samples, "1 with beams or state_file")
        check_file_writable("state_file", self.state_file)
        object.__setattr__(self, "stop", [self.stop] if isinstance(self.stop, str) else self.stop)


def generate_command(
    ckpt_path: str,
    prompt: str | None = None,
    prompt_file: str | None = None,
    prompts: str | None = None,
    **options: Any,
) -> None:
    """Print the continuation of a prompt while it is generated.

    Args:
        ckpt_path: A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.
        prompt: Text to continue; left out, the standard input if it is piped, or else a line end.
        prompt_file: File with the prompt; - is the standard input.
        prompts: File with a prompt in each line that is not empty, in place of one prompt.
        **options: As in TextOptions.
    """
    how = TextOptions(**options)
    if how.raw:
        sys.stdout = getattr(sys.stdout, "unfiltered", sys.stdout)
    alone = (prompt, prompt_file, how.num_beams, how.state_file) == (None,) * 4
    expected = "null with prompt, prompt_file, num_beams or state_file"
    require(prompts is None or alone, "prompts", prompts, expected)
    texts = [read_prompt(prompt, prompt_file)] if prompts is None else read_prompt_lines(prompts)
    checkpoint = find_checkpoint(ckpt_path)
    model, vocab = load_model(checkpoint, how.device, how.weights)
    # At once, before so many prompts are made: each step has so many logits.
    torch.empty(how.num_samples, model.config.n_token, device=model.device)
    sha256 = sha256_of_weights(checkpoint) if how.state_file else ""
    # Keys that other weights made would continue another text.
    sha256 += "" if how.weights == "float32" else f" {how.weights}"
    n_printed = 0
    if how.state_file and how.state_file.exists():
        state = load_state(how.state_file, model, sha256, how.mem_len, how.ext_len)
        n_printed, [text] = len(state), texts
        if text is not None:
            # The symbol that begins a text does not belong into the middle of one.
            ids_L = generation.encode_prompt(text, vocab)[vocab.n_start :]
            state = state.append_tokens(ids_L[None])
    else:
        ids = [generation.encode_prompt("\n" if text is None else text, vocab) for text in texts]
        ids = [ids_L for ids_L in ids for _ in range(how.num_samples)]
        ext_len = choose_ext_len(model, how, checkpoint)
        state = generation.start_decoding(model, ids, how.mem_len, ext_len)
    # Its generator starts from the same number in every process.
    torch.seed()
    if how.num_beams is None:
        steps = generation.decode_steps(model, state, how.max_new_tokens, how)
    else:
        steps = search_text(model, vocab, state, how)
    print_steps(Printer(vocab, state, how.stop, n_printed), steps, how.state_file, sha256)


def choose_ext_len(model: TransformerXL, how: TextOptions, checkpoint: Path) -> int:
    if how.ext_len is not None or not find_missing_memory(model, how.mem_len):
        return how.ext_len or 0
    return max(find_tgt_len(checkpoint) - 1, 1)


def search_text(
    model: TransformerXL, vocab: Vocabulary, state: DecodingState, how: TextOptions
) -> Iterator[DecodingState]:
    """Yield the state with the likeliest continuation found."""
    prefix = state.row_tokens(0)[-UNFINISHED:].tolist()

    def has_stop(ids: list[int]) -> bool:
        text = generation.StreamingDetokenizer(vocab, prefix, how.stop)
        for index in ids:
            text.push(index)
        return text.ended

    options = {"num_beams": how.num_beams, "is_finished": has_stop if how.stop else None}
    yield generation.search_beams(model, state, how.max_new_tokens, **options)


class Printer:
    """Prints one text while it is generated, or several with their numbers when all are complete.

    Nothing is printed of the first `n_printed` tokens, which an earlier command has printed.
    """

    def __init__(
        self, vocab: Vocabulary, state: DecodingState, stop: Sequence[str] = (), n_printed: int = 0
    ) -> None:
        self.state = state
        ids_B = [state.row_tokens(row).tolist() for row in range(len(state.length_B))]
        self.streams = [generation.StreamingDetokenizer(vocab, ids, stop) for ids in ids_B]
        self.texts = [""] * len(ids_B)
        self.print_new(["".join(stream.prefix_pieces[n_printed:]) for stream in self.streams])

    def print_state(self, state: DecodingState) -> None:
        """Print the tokens that the state printed before did not have."""
        new_LB = state.tokens_BL[:, len(self.state) :].T.tolist()
        self.state = state
        for tokens_B in new_LB:
            self.print_new([s.push(token) for s, token in zip(self.streams, tokens_B, strict=True)])

    def print_new(self, new_B: Sequence[str]) -> None:
        if len(self.texts) == 1:
            print(new_B[0], end="", flush=True)
        else:
            self.texts = [text + new for text, new in zip(self.texts, new_B, strict=True)]

    def finish(self) -> None:
        """Print what was withheld, or the whole of several texts."""
        self.print_new([stream.flush() for stream in self.streams])
        if len(self.texts) == 1:
            print()
            return
        for number, text in enumerate(self.texts, 1):
            print(f"--- {number} ---\n{text}\n")


def print_steps(
    printer: Printer, steps: Iterator[DecodingState], state_file: Path | None, sha256: str = ""
) -> None:
    """Print each step and save the last state, also when a signal ends it."""
    stopped = None
    try:
        for state in steps:
            # Or the file would hold a token that was never printed.
            with defer_signals():
                printer.print_state(state)
            if all(stream.ended for stream in printer.streams):
                break
    except SystemExit as signal:
        stopped = signal
    printer.finish()
    if state_file:
        save_state(state_file, printer.state, sha256)
    if stopped:
        raise stopped
