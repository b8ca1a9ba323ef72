"""Evaluation and generation leave each module in the mode that it had."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from txl_lightning import Adaptation, generate, score, stream_nats
from txl_lightning.analysis.attention_distance import sum_attention
from txl_lightning.analysis.context_length import score_context
from txl_lightning.data.stream import Stream
from txl_lightning.data.tokens import TextTokens
from txl_lightning.evaluation.protocols import Protocol
from txl_lightning.evaluation.scoring import score_text
from txl_lightning.evaluation.tuning import read_in_turns
from txl_lightning.generation.decoding import Sampling, decode_steps
from txl_lightning.generation.state import start_decoding
from txl_lightning.model import eval_mode

IDS = torch.randint(11, (40,), generator=torch.Generator().manual_seed(1))


def read_attention(net):
    stream = Stream.from_tokens(IDS.numpy(), 1, 5)
    sum_attention(net, [stream.segment(n) for n in range(3)], net.empty_memory(1), 1)


def choose_by_text(net):
    ways = [Protocol(tgt_len=5), Protocol(tgt_len=5, adaptation=Adaptation(rate=0.1))]
    list(read_in_turns(net, TextTokens(IDS.numpy()), ways))


USES = {
    "stream_nats": lambda net: stream_nats(net, IDS, batch_size=1, tgt_len=5),
    "a cache": lambda net: stream_nats(
        net, IDS, batch_size=1, tgt_len=5, adaptation=Adaptation(cache_len=9)
    ),
    "generate": lambda net: generate(net, IDS[:5], 3),
    "score": lambda net: score(net, IDS[:5], [IDS[5:9]]),
    "tuning": choose_by_text,
    "context": lambda net: score_context(net, IDS.numpy(), np.array([30]), 9),
    "attention": read_attention,
}


@pytest.fixture
def mixed(make_net):
    """A network in training mode with a part in eval mode, or the other way round."""
    net = make_net(dropout=0.2).train()
    net.layers[0].eval()
    net.layers[1].feed_forward.net[2].eval()
    return net


def list_modes(net: nn.Module) -> list[bool]:
    return [module.training for module in net.modules()]


@pytest.mark.parametrize("use", USES)
def test_each_module_is_left_in_the_mode_that_it_had(mixed, use):
    before = list_modes(mixed)
    USES[use](mixed)
    assert list_modes(mixed) == before


@pytest.mark.parametrize("use", ["stream_nats", "generate", "score", "context", "attention"])
def test_each_module_is_left_in_the_mode_that_it_had_after_an_error(mixed, monkeypatch, use):
    before = list_modes(mixed)
    # The feed-forward layer is called by every reader.
    monkeypatch.setattr(mixed.layers[1].feed_forward, "forward", None)
    with pytest.raises(TypeError, match="not callable"):
        USES[use](mixed)
    assert list_modes(mixed) == before


@torch.inference_mode()
def test_dropout_that_is_left_on_for_samples_is_on_again_afterwards(make_net):
    net = make_net(dropout=0.2)
    net.layers[1].drop.train()
    generate(net, IDS[:5], 3)
    assert [module.training for module in net.modules()].count(True) == 1
    assert net.layers[1].drop.training


def test_between_two_tokens_or_segments_a_model_has_its_own_mode(mixed):
    before = list_modes(mixed)
    state = start_decoding(mixed, [IDS[:5]])
    steps = decode_steps(mixed, state, 9, Sampling(seed=1))
    segments = score_text(mixed, TextTokens(IDS.numpy()), Protocol(tgt_len=5))
    ways = [Protocol(tgt_len=5), Protocol(tgt_len=5)]
    turns = read_in_turns(mixed, TextTokens(IDS.numpy()), ways)
    for generator in (steps, segments, turns):
        next(generator)
        assert list_modes(mixed) == before
    mixed.train()
    next(steps)
    assert all(list_modes(mixed))


def test_threads_that_evaluate_a_model_in_training_mode_agree_and_leave_its_modes(mixed):
    before = list_modes(mixed)
    expected = stream_nats(mixed, IDS, batch_size=1, tgt_len=5)
    results = []

    def evaluate():
        for _ in range(10):
            results.append(stream_nats(mixed, IDS, batch_size=1, tgt_len=5))

    threads = [threading.Thread(target=evaluate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 30
    assert all(torch.equal(each, expected) for each in results)
    assert list_modes(mixed) == before


def test_the_last_of_two_uses_restores_the_modes_whichever_ends_first(mixed):
    before = list_modes(mixed)
    first = eval_mode(mixed)
    part = eval_mode(mixed.layers)
    second = eval_mode(mixed)
    first.__enter__()
    part.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(list_modes(mixed))
    second.__exit__(None, None, None)
    assert not any(list_modes(mixed.layers))
    part.__exit__(None, None, None)
    assert list_modes(mixed) == before


class Merging(nn.Linear):
    """A layer that does more in its `train`, as adapters do."""

    merged = False

    def train(self, mode=True):
        self.merged = not mode
        return super().train(mode)


def test_a_module_whose_train_does_more_is_told_of_both_changes(make_net):
    net = make_net().train()
    net.layers[0].feed_forward.net[0] = Merging(8, 32).double()
    merging = net.layers[0].feed_forward.net[0]
    seen = []
    merging.register_forward_hook(lambda module, *_: seen.append(module.merged))
    stream_nats(net, IDS, batch_size=1, tgt_len=5)
    assert (set(seen), merging.merged, merging.training) == ({True}, False, True)
