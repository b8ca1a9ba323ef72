"""A network is the same argument in any wrapper, and another object is refused in one line."""

import pytest
import torch
from torch import nn

from experiments.words.lstm import LSTMConfig
from txl_lightning import (
    Adaptation,
    LanguageModel,
    TransformerXLConfig,
    generate,
    score,
    stream_nats,
)
from txl_lightning.generation.candidates import score_candidates, start_scoring
from txl_lightning.model import find_network
from txl_lightning.model.contract import has_states
from txl_lightning.model.contract_check import check_network

IDS = torch.randint(11, (30,), generator=torch.Generator().manual_seed(1))
CONFIGS = {
    "TransformerXL": TransformerXLConfig(n_token=11, n_layer=1, n_head=1, d_model=8, mem_len=16),
    "LSTM": LSTMConfig(n_token=11, width=8),
}
WRAPPERS = {
    "LanguageModel": lambda model: model,
    "network": lambda model: model.net,
    "compiled network": lambda model: torch.compile(model.net, backend="eager"),
    "network compiled in place": lambda model: model.net.compile(backend="eager") or model.net,
    "compiled LanguageModel": lambda model: torch.compile(model, backend="eager"),
    "LanguageModel compiled in place": lambda model: model.compile(backend="eager") or model,
    "LanguageModel that holds a compiled network": lambda model: hold_compiled(model),
}


def hold_compiled(model):
    model.net = torch.compile(model.net, backend="eager")
    return model


def list_results(model) -> list[torch.Tensor]:
    state = start_scoring(model, IDS[:5], None)
    cache = Adaptation(cache_len=9 if has_states(find_network(model)) else 0)
    return [
        stream_nats(model, IDS, batch_size=1, tgt_len=7),
        stream_nats(model, IDS, batch_size=1, tgt_len=7, adaptation=cache),
        generate(model, IDS[:5], 6, temperature=0),
        score(model, IDS[:5], [IDS[5:9]])[0],
        score_candidates(model, state, [IDS[5:9]])[0][0],
    ]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_function_takes_a_network_in_any_wrapper(kind, wrapper):
    torch.manual_seed(0)
    model = LanguageModel(CONFIGS[kind]).eval()
    net = model.net
    expected = list_results(net)
    wrapped = WRAPPERS[wrapper](model)
    assert find_network(wrapped) is net
    torch.testing.assert_close(list_results(wrapped), expected)
    check_network(wrapped)


class Wrapped(nn.Module):
    """A network of one's own that keeps its modules in `net`."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.net = config.build()

    def empty_memory(self, *inputs):
        return self.net.empty_memory(*inputs)

    def forward(self, *inputs):
        logits_BLV, memory = self.net(*inputs)
        return -logits_BLV, memory

    def loss(self, tokens_BL, targets_BL, *inputs):
        logits_BLV, memory = self(tokens_BL, *inputs)
        logits_BVL = logits_BLV[:, -targets_BL.size(1) :].float().mT
        return nn.functional.cross_entropy(logits_BVL, targets_BL, reduction="none"), memory


def test_a_module_called_net_of_a_network_of_ones_own_is_not_taken_for_it():
    torch.manual_seed(0)
    net = Wrapped(CONFIGS["LSTM"]).eval()
    assert find_network(net) is net
    logits_BLV, _ = net(IDS[None])
    expected = logits_BLV[0, :-1].log_softmax(-1).gather(1, IDS[1:, None])[:, 0]
    nats = stream_nats(net, IDS, batch_size=1, tgt_len=7)
    [last] = score(net, IDS[:-1], [IDS[-1:]])
    torch.testing.assert_close(nats[0], -expected.detach())
    torch.testing.assert_close(last[0], -expected[-1].detach())
    assert generate(net, IDS, 1, temperature=0).tolist() == [int(logits_BLV[0, -1].argmax())]
    check_network(net)


@pytest.mark.parametrize("model", [nn.Sequential(), "gpt2", None, nn.DataParallel(nn.Linear(1, 1))])
def test_another_object_is_refused_in_one_line(model):
    expected = f"model: invalid {type(model).__name__}; expected a network"
    for use in (
        lambda: stream_nats(model, IDS, batch_size=1, tgt_len=7),
        lambda: generate(model, IDS[:5], 6),
        lambda: score(model, IDS[:5], [IDS[5:9]]),
        lambda: check_network(model),
    ):
        with pytest.raises(ValueError, match=expected):
            use()


def test_hooks_of_a_compiled_network_are_refused():
    net = torch.compile(CONFIGS["TransformerXL"].build(), backend="eager")
    net.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="model: invalid a compiled network with hooks"):
        stream_nats(net, IDS, batch_size=1, tgt_len=7)


def test_hooks_of_a_network_act_on_what_it_generates():
    net = CONFIGS["TransformerXL"].build().eval()
    before = generate(net, IDS[:5], 6, temperature=0)
    net.register_forward_hook(lambda module, inputs, output: (-output[0], output[1]))
    with torch.no_grad():
        logits_BLV, _ = net(IDS[None, :5])
    after = generate(net, IDS[:5], 6, temperature=0)
    assert int(after[0]) == int(logits_BLV[0, -1].argmax()) != int(before[0])
