"""lm-evaluation-harness (extra lm-eval): importing this file registers "txl".

    python -m txl_lightning.hub.harness run --model txl --model_args pretrained=RUN --tasks TASK

--allow_imports PACKAGE lets a checkpoint name its network's class in that package.
Texts of any length are read in segments with memory; scores are as in `evaluate` with the same
lengths. The harness's own backend "hf" then has the classes of this package, too.

B texts   L segment   K scored tokens   T tokens of the longest text   D width
"""

import os
import sys
from collections.abc import Sequence

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from ..command_line import take_option
from ..convert import load_any_checkpoint
from ..errors import DataError, format_line, prefix_errors, print_notice, require
from ..generation import Sampling, StreamingDetokenizer, decode_steps, start_decoding
from ..generation.prompts import encode_start
from ..imports import allow_imports
from ..model import EvalLengths, find_device
from ..model.reading import Reader, read_segments

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
KNOWN = ("do_sample", "until", "max_gen_toks", *SAMPLING)
Score = tuple[float, bool]


@register_model("txl")
class HarnessModel(TemplateLM):
    """A network with memory, and its vocabulary.

    Args:
        pretrained: a run, or anything else that `convert` takes.
        device: where to compute.
        batch_size: texts scored in parallel.
        tgt_len: tokens per segment.
        mem_len: memory length; default as in training.
        ext_len: tokens read again with each segment; needed to generate with absolute positions.
    """

    def __init__(
        self,
        pretrained: str,
        device: str | None = None,
        batch_size: int | str = 1,
        tgt_len: int = 128,
        mem_len: int | None = None,
        ext_len: int = 0,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.batch_size = read_count("batch_size", batch_size, 1)
        self.tgt_len = read_count("tgt_len", tgt_len, 1)
        self.ext_len = read_count("ext_len", ext_len)
        self.mem_len = None if mem_len is None else read_count("mem_len", mem_len)
        with prefix_errors("pretrained", ": "):
            # The harness reads a name such as 2024 as a number.
            net, vocab, _ = load_any_checkpoint(str(pretrained))
        if vocab is None:
            raise DataError(f"pretrained: {pretrained} has no vocabulary; convert with --vocab")
        # The harness's command line asks for a GPU by default.
        self.net = net.to(device if device and torch.cuda.is_available() else "cpu")
        self.vocab = vocab

    @property
    def device(self) -> torch.device:
        return find_device(self.net)

    @property
    def eot_token_id(self) -> int:
        """The line end: the context of texts without one, as in `generate`."""
        return int(encode_start(self.vocab)[-1])

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        return self.vocab.encode_text(string).tolist()

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return log p of each text, without its first token, which has no context."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        counts = [len(ids) - 1 for ids in texts]
        return [logp for logp, _ in self.score(texts, counts, disable_tqdm)]

    # Private, but the method that `loglikelihood` of the base class calls.
    def _loglikelihood_tokens(
        self, requests: list[tuple], disable_tqdm: bool = False, **_: object
    ) -> list[Score]:
        texts = [context + continuation for _, context, continuation in requests]
        return self.score(texts, [len(ids) for _, _, ids in requests], disable_tqdm)

    def score(
        self, texts: Sequence[list[int]], counts: Sequence[int], disable_tqdm: bool = False
    ) -> list[Score]:
        """Return log p of the last tokens of each text, and if each of them is the most likely."""
        scores: dict[int, Score] = {}
        # Texts of similar length together; those that need most memory first.
        order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
        for start in tqdm(range(0, len(texts), self.batch_size), disable=disable_tqdm):
            rows = order[start : start + self.batch_size]
            batch = self.score_batch([texts[n] for n in rows], [counts[n] for n in rows])
            scores |= zip(rows, batch, strict=True)
        return [scores[n] for n in range(len(texts))]

    @torch.inference_mode()
    def score_batch(self, texts: Sequence[list[int]], counts: Sequence[int]) -> list[Score]:
        reader = Reader(self.net)
        device = self.device
        # Padding is after the texts, so that no token of a text attends to it.
        tokens_BT = pad_sequence([torch.tensor(ids).long() for ids in texts], True).to(device)
        length_B1 = torch.tensor([len(ids) for ids in texts], device=device)[:, None]
        position_T = torch.arange(tokens_BT.size(1), device=device)
        first_B1 = length_B1 - torch.tensor(counts, device=device)[:, None]
        is_scored_BT = (position_T >= first_B1) & (position_T < length_B1)
        memory = reader.empty_memory(len(texts), EvalLengths(self.mem_len))
        logp_B = torch.zeros(len(texts), dtype=torch.float64, device=device)
        is_greedy_B = torch.ones(len(texts), dtype=torch.bool, device=device)
        last = tokens_BT.size(1) - 1
        bounds = [*range(0, last, self.tgt_len), last]
        parts = read_segments(reader, tokens_BT, memory, bounds, self.ext_len)
        for start, (h_BLD, _) in zip(bounds, parts, strict=False):
            is_scored_BL = is_scored_BT[:, start + 1 : start + 1 + h_BLD.size(1)]
            row_K, column_K = is_scored_BL.nonzero(as_tuple=True)
            h_KD = h_BLD[row_K, column_K]
            target_K = tokens_BT[row_K, column_K + start + 1]
            logp_B.index_add_(0, row_K, -reader.head.nats(h_KD, target_K).double())
            is_greedy_B[row_K[reader.head(h_KD).argmax(-1) != target_K]] = False
        return list(zip(logp_B.tolist(), is_greedy_B.tolist(), strict=True))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        return [self.generate(*request.args) for request in tqdm(requests, disable=disable_tqdm)]

    def generate(self, context: str, options: dict) -> str:
        options = normalize_gen_kwargs(options)
        for name in options:
            require(name in KNOWN, "generation_kwargs", name, f"one of {', '.join(KNOWN)}")
        if not options["do_sample"]:
            options["temperature"] = 0
        sampling = Sampling(**{name: options[name] for name in SAMPLING if name in options})
        ids = self.tok_encode(context) or [self.eot_token_id]
        state = start_decoding(self.net, [torch.tensor(ids)], self.mem_len, self.ext_len)
        text = StreamingDetokenizer(self.vocab, ids, options["until"])
        new = []
        for after in decode_steps(self.net, state, options["max_gen_toks"], sampling):
            new.append(text.push(int(after.tokens_BL[0, -1])))
            if text.ended:
                break
        return "".join([*new, text.flush()])


def read_count(key: str, value: int | str, least: int = 0) -> int:
    """Return a whole number that the harness may give as a text."""
    is_count = str(value).isdecimal() and int(value) >= least
    require(is_count, key, value, f"a whole number, at least {least}")
    return int(value)


def main() -> None:
    """Run the harness; a user's mistake is one line and an exit code (TXL_DEBUG=1: a traceback)."""
    try:
        packages, sys.argv[1:] = take_option(sys.argv[1:], "--allow_imports")
        allow_imports(packages)
        cli_evaluate()
    except ValueError as error:
        if os.environ.get("TXL_DEBUG"):
            raise
        print_notice(f"error: {format_line(str(error))}")
        sys.exit(getattr(error, "exit_code", 2))


if __name__ == "__main__":
    main()
