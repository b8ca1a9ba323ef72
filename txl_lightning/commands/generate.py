"""generate: continue a prompt."""

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from .. import generation
from ..data.vocab import Vocabulary
from ..errors import print_notice, require, require_at_least, unfiltered_stdout
from ..files import replace_file
from ..generation.prompts import encode_start
from ..generation.state import DecodingState, find_missing_memory
from ..model import Network, Weights, find_device
from ..model.adaptation import Adaptation
from ..model.ring import make_decoder
from ..process import defer_signals
from .inputs import (
    Device,
    DistanceNotice,
    check_array_file,
    hint_at_escapes,
    load_model,
    read_prompt,
    read_prompt_ids,
    read_prompt_lines,
    share_unknown,
)

UNFINISHED = 64  # last tokens of a text among which an unfinished character or word may begin


@dataclass(frozen=True)
class TextOptions(generation.Sampling):
    """Settings of each prompt's continuation."""

    temperature: float = 0.8
    min_p: float | None = 0.05
    max_new_tokens: int = 500
    """Most tokens to generate."""
    stop: list[str] | str = ()
    """Text, or list of texts, before which the continuation ends."""
    num_samples: int = 1
    """Continuations of each prompt; several are printed when all are complete."""
    out_ids: str | None = None
    """File (.npy) for the new ids before a stop: of one sample, or a row for each, filled up with
    -1."""
    mem_len: int | None = None
    """States remembered; left out, as in training."""
    ext_len: int | None = None
    """Tokens read again with each new one; left out, those that the memory cannot replace."""
    raw: bool = False
    """Print control characters of a text unchanged on a terminal, as always in a pipe."""
    device: Device = None
    """Device of the model; left out, a GPU if there is one."""
    weights: Weights = "float32"
    """Precision of weights, keys and values: bf16 needs less memory, and is less exact."""
    cuda_graph: bool = False
    """Compute each token as one CUDA graph, to be launched at once; not run on a GPU yet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, max_new_tokens=0, num_samples=1)
        check_array_file("out_ids", self.out_ids)
        object.__setattr__(self, "stop", [self.stop] if isinstance(self.stop, str) else self.stop)
        require(all(self.stop), "stop", [*self.stop], "texts of at least one character")


def generate_command(
    ckpt_path: str,
    prompt: str | None = None,
    prompt_file: str | None = None,
    prompt_ids: str | None = None,
    prompts: str | None = None,
    adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
    **options: Any,
) -> None:
    """Print the continuation of a prompt while it is generated.

    Args:
        ckpt_path: A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.
        prompt: Text to continue; - is the standard input; left out, a line end.
        prompt_file: File with the prompt; - is the standard input.
        prompt_ids: Ids instead of a text: "3 1 4", or a .npy.
        prompts: File with a prompt in each line that is not empty, instead of one prompt.
        adaptation: What is learned from a text; the fields of a cache are options.
        **options: As in TextOptions.
    """
    settings = TextOptions(**options)
    adaptation.require_used()
    hint_at_escapes(prompt=prompt, stop=settings.stop)
    texts = (prompt, prompt_file, prompt_ids)
    is_alone = (*texts, settings.out_ids) == (None,) * 4
    expected = "null with prompt, prompt_file, prompt_ids or out_ids"
    require(prompts is None or is_alone, "prompts", prompts, expected)
    require(prompt_ids is None or texts[:2] == (None, None), "prompt_ids", prompt_ids, "no prompt")
    if prompt_ids is None:
        texts = [read_prompt(*texts[:2])] if prompts is None else read_prompt_lines(prompts)
    checkpoint, model, vocab = load_model(ckpt_path, settings.device, settings.weights)
    if prompt_ids is not None:
        texts = [read_prompt_ids(prompt_ids, model.config.n_token)]
    # Fail before a prompt is printed.
    make_decoder(model, adaptation, settings.cuda_graph)
    # Fail early with too many samples: each step allocates this many logits.
    torch.empty(settings.num_samples, model.config.n_token, device=find_device(model))
    how = settings, adaptation, max(checkpoint.tgt_len - 1, 1)
    state = start_state(texts, model, vocab, *how)
    notice = DistanceNotice(checkpoint, settings.mem_len, settings.ext_len or 0)
    n_prompt = len(state) - 1
    notice.check(n_prompt, n_prompt, settings.max_new_tokens)
    # torch's generator starts from the same number in every process.
    torch.seed()
    how = settings.max_new_tokens, settings, settings.cuda_graph
    steps = generation.decode_steps(model, state, *how)
    stream = unfiltered_stdout() if settings.raw or not sys.stdout.isatty() else sys.stdout
    given = [text for text in texts for _ in range(settings.num_samples)]
    print_steps(Printer(vocab, state, settings.stop, stream, given), steps, settings.out_ids)


def start_state(
    texts: Sequence[generation.Prompt | None],
    model: Network,
    vocab: Vocabulary,
    settings: TextOptions,
    adaptation: Adaptation,
    context_len: int,
) -> DecodingState:
    """Return the state before the prompts are read.

    `context_len` tokens are read again with each new one where memory cannot replace them.
    """
    ids = [encode_start(vocab) if t is None else generation.encode_prompt(t, vocab) for t in texts]
    given = [ids_L for ids_L, text in zip(ids, texts, strict=True) if isinstance(text, str)]
    if any(share_unknown(vocab, ids_L.numpy()) for ids_L in given):
        print_notice("warning: the prompt has text that the vocabulary does not know")
    ids = [ids_L for ids_L in ids for _ in range(settings.num_samples)]
    ext_len = settings.ext_len
    if ext_len is None and find_missing_memory(model, settings.mem_len):
        ext_len = context_len
    lengths = settings.mem_len, ext_len or 0
    return generation.start_decoding(model, ids, *lengths, adaptation)


class Printer:
    """Prints one text while it is generated, or several with their numbers when all are complete.

    Texts among the prompts are printed as given.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        state: DecodingState,
        stop: Sequence[str] = (),
        stream: TextIO | None = None,
        prompts: Sequence[Any] | None = None,
    ) -> None:
        self.state = state
        self.stream = stream
        ids_B = [state.row_tokens(row).tolist() for row in range(len(state.length_B))]
        self.streams = [generation.StreamingDetokenizer(vocab, ids, stop) for ids in ids_B]
        self.texts = [""] * len(ids_B)
        decoded = ["".join(stream.prefix_pieces) for stream in self.streams]
        given = prompts or [None] * len(decoded)
        pairs = zip(given, decoded, strict=True)
        self.print_new([generation.prompts.echo_prompt(*pair) for pair in pairs])

    def print_state(self, state: DecodingState) -> None:
        """Print the tokens added to the last printed state."""
        new_LB = state.tokens_BL[:, len(self.state) :].T.tolist()
        self.state = state
        for tokens_B in new_LB:
            self.print_new([s.push(token) for s, token in zip(self.streams, tokens_B, strict=True)])

    def print_new(self, new_B: Sequence[str]) -> None:
        if len(self.texts) == 1:
            print(new_B[0], end="", flush=True, file=self.stream)
        else:
            self.texts = [text + new for text, new in zip(self.texts, new_B, strict=True)]

    def finish(self) -> None:
        """Print the text that was withheld, or all of several texts."""
        self.print_new([stream.flush() for stream in self.streams])
        if len(self.texts) == 1:
            print(file=self.stream)
            return
        for number, text in enumerate(self.texts, 1):
            print(f"--- {number} ---\n{text}\n", file=self.stream)


def save_ids(
    path: Path, new_BL: np.ndarray, streams: Sequence[generation.StreamingDetokenizer]
) -> None:
    """Save the new ids of one text, or a row for each; -1 where another row is longer.

    Tokens that a stop string is a part of are left out.
    """
    n_kept_B = [text.n_kept if text.ended else new_BL.shape[1] for text in streams]
    is_kept_BL = np.arange(new_BL.shape[1]) < np.array(n_kept_B)[:, None]
    ids_BL = np.where(is_kept_BL, new_BL, -1)[:, : max(n_kept_B)]
    content = io.BytesIO()
    # Not to a path, to which np.save would add .npy.
    np.save(content, ids_BL if len(ids_BL) > 1 else ids_BL[0])
    replace_file(path, lambda part: part.write_bytes(content.getvalue()))


def print_steps(
    printer: Printer,
    steps: Iterator[DecodingState],
    out_ids: str | None = None,
) -> None:
    """Print each step and save the new ids, also after a signal."""
    stopped = None
    n_before = len(printer.state)
    try:
        for state in steps:
            # Otherwise the file could have a token that was not printed.
            with defer_signals():
                printer.print_state(state)
            if all(stream.ended for stream in printer.streams):
                break
    except SystemExit as signal:
        stopped = signal
    printer.finish()
    if out_ids:
        save_ids(
            Path(out_ids), printer.state.tokens_BL[:, n_before:].cpu().numpy(), printer.streams
        )
    if stopped:
        raise stopped
