"""Decoding one token at a time: sampling, with a repetition penalty and filters.

B texts   L tokens   V vocabulary   W recent tokens
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.vocab import Vocabulary
from ..errors import convert_fields, require, suggest_key, to_plain
from ..model import Network, accumulator_dtype, eval_mode, find_network
from ..model.adaptation import Adaptation
from ..model.ring import make_decoder
from .prompts import Prompt, decode_as, encode_prompt, is_one
from .state import DecodingState, read_to_end, start_decoding


@dataclass(frozen=True)
class Sampling:
    """Sampling of a token: repetition penalty, temperature, then top_k, top_p and min_p.

    >>> Sampling(temperature=0.8, min_p=0.05, seed=1).top_k is None
    True

    Each filter renormalizes the probabilities left by the previous one. An invalid value is a
    ValueError. `choose_tokens(logits_BV, recent_BW, quantile_B)` returns a token for each row.
    """

    temperature: float = 1.0
    """Divisor of the logits; 0 always takes the most likely token."""
    top_k: int | None = None
    """Sample from this many of the most likely tokens, and ties with the last of them."""
    top_p: float | None = None
    """Sample from the fewest most likely tokens that sum to this (Holtzman et al. 2020)."""
    min_p: float | None = None
    """Sample from tokens with at least this fraction of the highest probability."""
    repetition_penalty: float = 1.0
    """Divide recent tokens' positive logits, multiply negative ones (Keskar et al. 2019: 1.2); as
    in transformers, this depends on the zero point of the logits."""
    penalty_window: int = 64
    """Number of recent tokens that are penalized, including the prompt's."""
    seed: int | None = None
    """Equal seeds give equal texts, and a call's texts differ; left out, torch draws a seed."""

    def __post_init__(self) -> None:
        convert_fields(self)
        for name, is_valid, expected in (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1, or null"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "more than 0, at most 1, or null"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1, or null"),
            ("repetition_penalty", 1 <= self.repetition_penalty <= 1e9, "from 1 to 1e9"),
            ("penalty_window", self.penalty_window >= 1, "at least 1"),
            ("seed", -(2**63) <= (self.seed or 0) < 2**64, "from -2**63 to 2**64 - 1"),
        ):
            require(is_valid, name, getattr(self, name), expected)

    def choose_tokens(self, logits_BV: Tensor, recent_BW: Tensor, quantile_B: Tensor) -> Tensor:
        """Return the token of each row at its quantile, in (0, 1], of the filtered distribution."""
        logits_BV = logits_BV.to(accumulator_dtype(logits_BV.device))
        logits_BV = penalize_tokens(logits_BV, recent_BW, self.repetition_penalty)
        if self.temperature == 0:
            return logits_BV.argmax(dim=-1)
        # Relative to the maximum, so that no logit overflows at a low temperature.
        logits_BV = (logits_BV - logits_BV.amax(dim=-1, keepdim=True)) / self.temperature
        filters = ((keep_top_k, self.top_k), (keep_top_p, self.top_p), (keep_min_p, self.min_p))
        for keep, limit in filters:
            if limit is not None:
                logits_BV = keep(limit, logits_BV)
        return invert_distribution(logits_BV.softmax(dim=-1), quantile_B)


def generate(
    model: Network,
    prompt: Prompt | list[Prompt],
    max_new_tokens: int = 500,
    *,
    vocab: Vocabulary | None = None,
    mem_len: int | None = None,
    ext_len: int = 0,
    adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
    cuda_graph: bool = False,
    **sampling: Any,
) -> Any:
    """Continue a prompt by sampling; return the continuation without the prompt.

    >>> model, vocab = load("version_0")
    >>> text = generate(model, "ROMEO:", 40, vocab=vocab, top_p=0.9, seed=1)
    >>> len(generate(model, [3, 1, 4], 5, temperature=0))
    5

    Settings of sampling are temperature, top_k, top_p, min_p, repetition_penalty, penalty_window
    and seed.

    Args:
        model: a network or a LanguageModel; used in eval mode, then its mode is restored.
        prompt: a text, or ids (a tensor or a list), of at least one token; or a list of such
            prompts of any lengths, each continued independently. The result has the same form.
        max_new_tokens: tokens to sample.
        vocab: the vocabulary of texts.
        mem_len: memory length; default as in training.
        ext_len: tokens read again with each new one, in addition to the memory. Required for
            absolute positions, which count from the end of a segment, and for mem_len 0.
        adaptation: settings of a continuous cache; generation takes no steps of the weights.
        cuda_graph: compute each token as one CUDA graph; it has not run on a GPU yet.
        **sampling: fields of `Sampling`; torch's generator draws a seed by default.

    Raises:
        ValueError: an empty prompt, a text without vocab, an invalid number, or an unknown name.
    """
    refuse_unknown_names(sampling)
    net = find_network(model)
    require_no_steps(adaptation)
    prompts = [prompt] if is_one(prompt) else prompt
    ids = [encode_prompt(each, vocab) for each in prompts]
    state = start_decoding(net, ids, mem_len, ext_len, adaptation)
    prompt_len = len(state)
    for after in decode_steps(net, state, max_new_tokens, Sampling(**sampling), cuda_graph):
        state = after
    new = state.tokens_BL[:, prompt_len:]
    texts = [decode_as(*each, vocab) for each in zip(prompts, ids, new, strict=True)]
    return texts[0] if is_one(prompt) else texts


def refuse_unknown_names(sampling: Iterable[str]) -> None:
    """Refuse names that are no settings of generate, with the nearest one."""
    known = [field.name for field in fields(Sampling)]
    others = [name for name in signature(generate).parameters if name != "sampling"]
    for name in sampling:
        if name not in known:
            raise ValueError(suggest_key(name, [*known, *others]))


@torch.inference_mode()
def decode_steps(
    model: Network,
    state: DecodingState,
    max_new_tokens: int,
    sampling: Sampling,
    cuda_graph: bool = False,
) -> Iterator[DecodingState]:
    """Yield the state after each new token, which is not read yet; each state can be continued.

    >>> model, vocab = load("version_0")
    >>> state = start_decoding(model, [encode_prompt("to be", vocab)])
    >>> for state in decode_steps(model, state, 3, Sampling(top_p=0.9, seed=1)):
    ...     token_B = state.tokens_BL[:, -1]
    >>> len(state), state.length_B
    (8, tensor([8]))

    Args:
        cuda_graph: compute each token as one CUDA graph; it has not run on a GPU yet. The weights
            must stay the same tensors meanwhile.

    Raises:
        ValueError: max_new_tokens below 0; an adaptation that takes steps; cuda_graph without a
            GPU, or with hooks or parts of your own in the network.
        NonFiniteError: logits that are not finite.
    """
    n_new = to_plain(max_new_tokens)
    is_count = isinstance(n_new, int) and n_new >= 0
    require(is_count, "max_new_tokens", n_new, "a whole number, 0 or more")
    require_no_steps(state.adaptation)
    seed = int(torch.randint(2**62, ())) if sampling.seed is None else sampling.seed
    net = find_network(model)
    reader = make_decoder(net, state.adaptation, cuda_graph)
    for _ in range(n_new):
        # Between two tokens, the model has its own mode.
        with eval_mode(net):
            logits_BV, state = read_to_end(reader, state)
        recent_BW = state.recent_tokens(sampling.penalty_window)
        quantile_B = draw_quantiles(seed, state.length_B)
        token_B = sampling.choose_tokens(logits_BV, recent_BW, quantile_B)
        state = state.append_tokens(token_B[:, None])
        yield state


def require_no_steps(adaptation: Adaptation) -> None:
    require(not adaptation.rate, "rate", adaptation.rate, "0: generation takes no steps")


def penalize_tokens(logits_BV: Tensor, recent_BW: Tensor, penalty: float) -> Tensor:
    """Lower the logits of recent tokens, positive or negative."""
    if penalty == 1:
        return logits_BV
    lower_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    is_recent_BV = torch.zeros_like(logits_BV, dtype=torch.bool).scatter(1, recent_BW, True)
    return torch.where(is_recent_BV, lower_BV, logits_BV)


def keep_top_k(limit: int, logits_BV: Tensor) -> Tensor:
    """Keep the `limit` most likely tokens, and ties with the last of them."""
    least_B = logits_BV.topk(min(limit, logits_BV.size(1))).values[:, -1]
    return logits_BV.masked_fill(logits_BV < least_B[:, None], float("-inf"))


def keep_top_p(limit: float, logits_BV: Tensor) -> Tensor:
    """Keep the fewest most likely tokens whose probabilities sum to at least `limit`."""
    p_BV, order_BV = logits_BV.softmax(dim=-1).sort(descending=True, stable=True)
    is_kept_BV = p_BV.cumsum(dim=-1) - p_BV < limit
    is_kept_BV = torch.empty_like(is_kept_BV).scatter(1, order_BV, is_kept_BV)
    return logits_BV.masked_fill(~is_kept_BV, float("-inf"))


def keep_min_p(limit: float, logits_BV: Tensor) -> Tensor:
    """Keep tokens with at least `limit` times the highest probability."""
    p_BV = logits_BV.softmax(dim=-1)
    return logits_BV.masked_fill(p_BV < limit * p_BV.amax(dim=-1, keepdim=True), float("-inf"))


def invert_distribution(p_BV: Tensor, quantile_B: Tensor) -> Tensor:
    """Return the token of each row at which the cumulative probability reaches the quantile."""
    # Quantiles are above 0, so a token of probability 0 is never chosen.
    sum_BV = p_BV.cumsum(dim=-1)
    token_B1 = torch.searchsorted(sum_BV, quantile_B.to(sum_BV)[:, None] * sum_BV[:, -1:])
    return token_B1[:, 0]


def draw_quantiles(seed: int, length_B: Tensor) -> Tensor:
    """Draw quantile_B, in (0, 1], for the next token of each row.

    A counter-based generator (Philox): the key is seed and row, and the n-th token uses the n-th
    number, independent of other rows and of interruptions.
    """
    keys = np.array([[seed % 2**64, row] for row in range(len(length_B))], dtype=np.uint64)
    # A negative seed has the key of a large one, and numbers that are far behind.
    first = 2**128 if seed < 0 else 0
    quantile_B = [
        1 - np.random.Generator(np.random.Philox(key=key, counter=first + n)).random()
        for key, n in zip(keys, length_B.tolist(), strict=True)
    ]
    return torch.tensor(quantile_B, dtype=torch.float64)
