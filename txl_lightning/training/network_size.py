"""The size of a network by the text, the device and the minutes, as pure functions.

`choose_network` takes the largest network of LADDER for which nothing is too small: the text, the
minutes, or the memory. The best use of a number of operations are about 20 tokens for a parameter
(Hoffmann et al. 2022). Neighbors on the ladder differ by a factor of about three, so that from a
third of 20 on, the larger one is nearer. Up to four passes over a text are nearly as good as new
text (Muennighoff et al. 2023).

Speed and memory are reckoned from measurements of one H200 (experiments/gpu) and of one CPU
(tests/training/recipes.json), and of no other device. No network above the first was trained.

B rows   L segment   M memory   S = M + L   H heads   D width   F = 4 D   V vocabulary
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

PER_PARAMETER = 7
"""Tokens that a network must read for each of its parameters."""
MOST_PASSES = 4
"""Passes over a text in which its tokens count as new."""
TRAINING_SHARE = 0.8
"""Of the minutes; validations may take the rest."""
MEMORY_SHARE = 0.7
"""Of a card's memory, for what is reckoned."""

CARD_SHARE = 0.15
"""Of a card's peak, where its speed decides and not the host's: 15.6 to 17.7 % at enwik8_large."""
HOST_S = 5e-3
"""Seconds in which the host starts a layer of a training step: 4 to 6 ms of the other networks."""
CPU_RATE = 115e9
"""Operations per second of two threads of an AMD EPYC in bfloat16: 106 and 126 billion."""
PEAK_BY_CAPABILITY = {
    (8, 0): 312e12 / 108,  # A100
    (8, 6): 71e12 / 82,  # RTX 3090; professional cards have twice as many
    (8, 9): 165e12 / 128,  # RTX 4090; professional cards have twice as many
    (9, 0): 989e12 / 132,  # H100 SXM, H200
    (10, 0): 2250e12 / 148,  # B200
    (12, 0): 209e12 / 170,  # RTX 5090
}
"""Dense bfloat16 operations per second of a multiprocessor, as NVIDIA publishes those of a card."""


class Network(NamedTuple):
    """A Transformer-XL with the rows and segments in which it reads."""

    n_layer: int
    d_model: int
    n_head: int
    rows: int
    tgt_len: int
    mem_len: int

    @property
    def step_tokens(self) -> int:
        return self.rows * self.tgt_len


LADDER = (
    Network(4, 128, 4, 16, 64, 128),  # the quick start
    Network(6, 256, 4, 64, 128, 256),
    Network(8, 384, 6, 64, 128, 256),
    Network(12, 512, 8, 24, 512, 512),  # as paper/enwik8_base
    Network(16, 768, 12, 32, 512, 512),
    Network(18, 1024, 16, 64, 384, 384),  # as paper/wt103_large
)


class Text(NamedTuple):
    """Length of a text."""

    n_token: float  # about, of train, val and test together
    n_vocab: int


class Device(NamedTuple):
    """A device that trains: its name, and what is expected of it."""

    name: str
    rate: float | None  # operations per second; None: unknown
    source: str  # of the rate
    host_s: float = 0.0  # seconds for a layer of a step, however small it is
    memory: float = math.inf  # bytes


CPU = Device("a CPU", CPU_RATE, "as measured on two threads of an AMD EPYC")


def describe_card(properties: Any) -> Device:
    """Return what is expected of a card with the properties that CUDA names."""
    peak = PEAK_BY_CAPABILITY.get((properties.major, properties.minor))
    rate = peak and CARD_SHARE * peak * properties.multi_processor_count
    source = "reckoned, not measured on this card"
    return Device(properties.name, rate, source, HOST_S, properties.total_memory)


def choose_network(
    text: Text, device: Device, minutes: float, ladder: Sequence[Network] = LADDER
) -> Network:
    """Return the largest network of a ladder that text, device and minutes are enough for."""
    chosen = ladder[0]
    for network in ladder[1:]:
        if find_limit(network, text, device, minutes):
            break
        chosen = network
    return chosen


def find_limit(network: Network, text: Text, device: Device, minutes: float) -> str | None:
    """Return what is too small for a network, and by how much; None if nothing is."""
    shape = f"{network.n_layer} layers of {network.d_model}"
    if device.rate is None:
        return f"no larger network, because the speed of {device.name} is unknown"
    n_token = PER_PARAMETER * count_parameters(network, text.n_vocab)
    if MOST_PASSES * text.n_token < n_token:
        return f"{shape} from {format_millions(n_token / MOST_PASSES)} tokens of text on"
    if MEMORY_SHARE * device.memory < (n_byte := reckon_memory(network, text.n_vocab)):
        return f"{shape} from {n_byte / MEMORY_SHARE / 2**30:.0f} GiB of memory on"
    if minutes < (needed := reckon_minutes(n_token, network, text, device)):
        return f"{shape} from --plan.minutes {math.ceil(needed)} on"
    return None


def count_parameters(network: Network, n_vocab: int) -> int:
    """Return the weights of the matrices of all layers, and of the embedding."""
    # Of each layer q, k, v, o and r, and the two of its feed-forward network.
    return network.n_layer * 13 * network.d_model**2 + n_vocab * network.d_model


def count_operations(network: Network, n_vocab: int) -> float:
    """Return the operations of a training step for a token, as experiments/gpu/operations.py."""
    D = network.d_model
    L = network.tgt_len
    S = L + network.mem_len
    of_queries = 20 * D**2
    # Backward, the memory has no gradient.
    of_states = 4 * D**2 * (2 * S / L + 1)
    of_distances = 2 * (S + 1) * D**2 / network.step_tokens
    of_scores = 6 * S * D
    layer = 3 * of_queries + of_states + 3 * of_distances + 3 * of_scores
    return network.n_layer * layer + 6 * D * n_vocab


def reckon_speed(network: Network, n_vocab: int, device: Device) -> float:
    """Return the tokens per second that are expected: the host or the device decides."""
    assert device.rate is not None
    of_device = network.step_tokens * count_operations(network, n_vocab) / device.rate
    return network.step_tokens / max(of_device, network.n_layer * device.host_s)


def reckon_minutes(n_token: float, network: Network, text: Text, device: Device) -> float:
    """Return the minutes of a run that reads so many tokens."""
    return n_token / reckon_speed(network, text.n_vocab, device) / TRAINING_SHARE / 60


def count_passes(network: Network, text: Text, device: Device, minutes: float) -> float:
    """Return how often a run of so many minutes reads the text; 0 if the speed is unknown."""
    if device.rate is None:
        return 0.0
    return minutes / reckon_minutes(text.n_token, network, text, device)


def reckon_memory(network: Network, n_vocab: int) -> float:
    """Return the bytes of training in bf16-mixed: weights and moments, scores, activations, loss.

    The factors are those of the peaks of enwik8_base (6.9 GB) and enwik8_large (92.7 GB).
    """
    tokens = network.step_tokens
    scores = 4 * tokens * network.n_head * (network.tgt_len + network.mem_len)
    activations = 26 * tokens * network.d_model
    of_softmax = 12 * tokens * n_vocab
    states = 16 * count_parameters(network, n_vocab)
    return states + network.n_layer * (scores + activations) + of_softmax


def format_millions(number: float) -> str:
    if number < 1e5:
        return f"{float(f'{number:.2g}'):,.0f}"
    return f"{number / 1e6:,.0f} million" if number >= 10e6 else f"{number / 1e6:,.1f} million"
