"""Train a network to say the state after each token of a word, and measure how far it can.

A plain loop over `loss` of the contract: the Trainer's targets are the next tokens, and here the
state must not be in the input.

B rows   L tokens that are read at once   S segments of a word   G tokens in a segment
E elements of the group
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from experiments.recurrence.groups import GROUPS, WordSegment, draw_words
from txl_lightning.model.config import NetworkConfig
from txl_lightning.model.contract import AnyMemory, keep_gradient, stop_gradient
from txl_lightning.training.optimizers import OptimConfig, make_optimizer, make_scheduler

SPLITS = ("train", "val", "test")
CLIP = 1.0


class Arm(NamedTuple):
    """A network, and how it reads a word."""

    config: NetworkConfig
    gradient_segments: int = 1
    """Readings of an update, with a gradient from each into those before."""
    joined: int = 1
    """Segments that are read at once, as one."""

    def count_rows(self, n_segment: int) -> int:
        """Return the rows of an update with so many segments."""
        return n_segment // (self.gradient_segments * self.joined)


@dataclass(frozen=True)
class Sizes:
    """Sizes that all arms share."""

    width: int = 64
    segment: int = 4
    """Tokens of a segment."""
    longest: int = 64
    """Segments of a test word."""
    trained: int = 64
    """Segments of the longest word of training."""
    segments: int = 128
    """Segments in an update."""
    updates: int = 1500
    validated: int = 20
    """Updates whose words are drawn for validation."""
    test_words: int = 256

    @property
    def lengths(self) -> list[int]:
        """Segments of a word in training and validation: 1, 2, 4, ..."""
        return [2**power for power in range(self.trained.bit_length())]


FAST = Sizes(width=16, longest=4, trained=4, segments=16, updates=4, validated=1, test_words=4)


def open_words(
    group: str, split: str, seed: int, n_row: int, segment: int, lengths: list[int]
) -> Iterator[WordSegment]:
    """Return the words of a split and a seed, which are drawn by random numbers of their own."""
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    return draw_words(GROUPS[group], rng, n_row, segment, lengths)


def build(config: NetworkConfig, group: str, seed: int) -> nn.Module:
    """Return a new network, whose tokens and targets are the elements of the group."""
    torch.manual_seed(seed)
    return replace(config, n_token=len(GROUPS[group])).build()


def train(
    net: nn.Module, arm: Arm, optim: OptimConfig, words: Iterator[WordSegment], updates: int
) -> list[float]:
    """Train, and return the mean nats of each update."""
    optimizer = make_optimizer(optim, net)
    scheduler = make_scheduler(optim, optimizer, updates)
    memory = None
    curve = []
    for _ in range(updates):
        nats_BL, memory = read_update(net, arm, words, memory)
        memory = stop_gradient(memory)
        optimizer.zero_grad()
        nats_BL.mean().backward()
        clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        curve.append(nats_BL.mean().item())
    return curve


def read_update(
    net: nn.Module, arm: Arm, words: Iterator[WordSegment], memory: AnyMemory | None
) -> tuple[Tensor, AnyMemory]:
    """Return nats_BL of the segments of one update, and the memory after them."""
    parts = []
    for _ in range(arm.gradient_segments):
        tokens_BL, states_BL, doc_pos_BL = join_segments(words, arm.joined)
        memory = memory or net.empty_memory(len(tokens_BL))
        if arm.gradient_segments > 1:
            memory = keep_gradient(memory)
        nats_BL, memory = net.loss(tokens_BL, states_BL, memory, doc_pos_BL)
        parts.append(nats_BL)
    return torch.cat(parts, dim=1), memory


def join_segments(words: Iterator[WordSegment], count: int) -> WordSegment:
    """Return the next segments as one."""
    parts = zip(*islice(words, count), strict=True)
    return WordSegment(*(torch.cat(part, dim=1) for part in parts))


@torch.inference_mode()
def measure_nats(net: nn.Module, arm: Arm, words: Iterator[WordSegment], updates: int) -> float:
    """Return the mean nats of a state, of words as in training."""
    net.eval()
    memory = None
    sums = []
    for _ in range(updates):
        nats_BL, memory = read_update(net, arm, words, memory)
        sums.append(nats_BL.double().mean().item())
    return sum(sums) / updates


@torch.inference_mode()
def measure_accuracy(
    net: nn.Module, arm: Arm, words: Iterator[WordSegment], n_segment: int
) -> list[float]:
    """Return the share of right states in each segment of words of n_segment segments."""
    net.eval()
    memory = None
    parts = []
    for _ in range(n_segment // arm.joined):
        tokens_BL, states_BL, doc_pos_BL = join_segments(words, arm.joined)
        memory = memory or net.empty_memory(len(tokens_BL))
        logits_BLE, memory = net(tokens_BL, memory, doc_pos_BL)
        parts.append(logits_BLE.argmax(-1) == states_BL)
    right_BSG = torch.cat(parts, dim=1).unflatten(1, (n_segment, -1))
    return right_BSG.double().mean((0, 2)).tolist()
