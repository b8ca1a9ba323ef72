"""Properties of every network with the contract: of the package, of the page, of experiments."""

import re
import sys
import types
from dataclasses import replace
from functools import partial

import pytest
import torch

from experiments.words.lstm import LSTMConfig
from txl_lightning import TransformerXLConfig, networks
from txl_lightning.model import EvalLengths
from txl_lightning.model.config import describe_config
from txl_lightning.model.contract import join_rows, keep_gradient
from txl_lightning.model.contract_check import check_network
from txl_lightning.model.reading import Reader
from txl_lightning.networks.stateful import StateMemory
from txl_lightning.networks.units import UnitMemory

CONFIGS = {
    "TransformerXL": lambda: TransformerXLConfig(n_token=11, n_layer=2, d_model=8, mem_len=40),
    "page": None,
    "experiments' LSTM": lambda: LSTMConfig(n_token=11, width=8),
    "LSTM": lambda: networks.LSTMConfig(n_token=11, n_layer=2, d_model=8),
    "GatedDeltaNet": lambda: networks.GatedDeltaNetConfig(
        n_token=11, n_layer=2, d_model=8, chunk_len=5
    ),
    "Mamba2": lambda: networks.Mamba2Config(
        n_token=11, n_layer=2, d_model=8, d_head=4, d_state=6, chunk_len=5
    ),
    "RecurrentMemoryTransformer": lambda: networks.RecurrentMemoryTransformerConfig(
        n_token=11, n_layer=2, d_model=8, n_memory=3, unit_len=5
    ),
    "CompressiveTransformer": lambda: networks.CompressiveTransformerConfig(
        n_token=11, n_layer=2, d_model=8, unit_len=4, n_state=4, n_compressed=3, rate=2
    ),
}
TOKENS = torch.randint(11, (3, 13), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=CONFIGS)
def net(request, own_package):
    """A network in float64, in eval mode, whose parameters differ from their initial values."""
    make = CONFIGS[request.param] or (lambda: own_package.MyConfig(n_token=11, width=8))
    net = make().build().double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return net


def assert_same_memory(actual, expected):
    for name, tensor in expected.tensors().items():
        torch.testing.assert_close(actual.tensors()[name], tensor)


def test_loss_is_that_of_the_logits_and_ignored_targets_have_none(net):
    logits, _ = net(TOKENS)
    targets = TOKENS.roll(-1, 1)[:, -5:].clone()
    targets[0, 2] = -100
    nats, _ = net.loss(TOKENS, targets)
    expected = -logits[:, -5:].log_softmax(-1).gather(2, targets.clamp(min=0)[..., None])[..., 0]
    expected[0, 2] = 0
    torch.testing.assert_close(nats.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_text_in_two_segments_is_read_as_a_whole(net, cut):
    whole, after = net(TOKENS)
    first, memory = net(TOKENS[:, :cut])
    second, last = net(TOKENS[:, cut:], memory)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    assert_same_memory(last, after)


def test_memory_leaves_out_the_tokens_that_are_read_again(net):
    _, expected = net(TOKENS[:, :8])
    _, memory = net(TOKENS, n_reread=5)
    assert_same_memory(memory, expected)
    torch.testing.assert_close(net(TOKENS[:, 8:], memory)[0], net(TOKENS)[0][:, 8:])


def test_tokens_before_a_document_have_no_effect_on_it(net):
    doc_pos = torch.arange(13) + torch.tensor([[7], [0], [3]])
    doc_pos[0, 5:] = torch.arange(8)
    doc_pos[2, 0:] = torch.arange(13)
    others = TOKENS.clone()
    others[0, :5] = (others[0, :5] + 1) % 11
    results = []
    for before, tokens in ((TOKENS, TOKENS), (TOKENS.flip(1), others)):
        _, memory = net(before[:, :7])
        logits, memory = net(tokens, memory, doc_pos)
        parts = logits[0, 5:], logits[1:], memory
        results.append(parts)
    for first, second in zip(results[0][:2], results[1][:2], strict=True):
        torch.testing.assert_close(first, second)
    assert not net(TOKENS.flip(1), net(TOKENS)[1])[0].equal(net(TOKENS.flip(1))[0])


def test_memory_has_no_gradient_unless_asked_and_its_rows_are_taken_and_joined(net):
    _, memory = net(TOKENS)
    assert memory.batch_size == 3
    assert not any(tensor.requires_grad for tensor in memory.tensors().values())
    parts = [memory.rows(rows).tensors() for rows in (slice(2), slice(2, 3))]
    restored = net.empty_memory(1).restore(join_rows(memory.rows(slice(1)), parts)).to("cpu")
    assert_same_memory(restored, memory)
    assert_same_memory(memory.rows(torch.tensor([2, 0])), net(TOKENS[[2, 0]])[1])
    assert_same_memory(memory.resize(EvalLengths().resolve(net.config)), memory)


def test_evaluation_without_memory_starts_each_segment_afresh(net):
    reader = Reader(net)
    with torch.no_grad():
        _, memory = reader.hidden(TOKENS[:, :4], reader.empty_memory(3, EvalLengths(0)))
        h_BLD, _ = reader.hidden(TOKENS[:, 4:8], memory)
        expected, _ = reader.hidden(TOKENS[:, 4:8], reader.empty_memory(3, EvalLengths(0)))
    torch.testing.assert_close(reader.head(h_BLD), reader.head(expected))


def test_config_is_rebuilt_from_plain_settings(net):
    plain = describe_config(net.config)
    plain.pop("class_path", None)
    assert type(net.config)(**plain) == net.config


def test_network_with_the_contract_is_accepted_and_not_modified(net):
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    check_network(net.train().float())
    check_network(net, tgt_len=3)
    assert net.training
    torch.testing.assert_close(dict(net.state_dict()), before, check_dtype=False)


def test_page_of_own_networks_checks_its_network(own_package, repository):
    page = (repository / "docs" / "own_network.md").read_text()
    _, code, *_ = re.findall("```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)
    assert names["check_network"] is check_network


@pytest.fixture
def read_page(repository, monkeypatch):
    """Return a function that makes a module of the code of docs/own_network.md with a name."""

    def read(name):
        page = (repository / "docs" / "own_network.md").read_text()
        [code] = re.findall(f"```python\n(# {name}.py\n.*?)```", page, re.DOTALL)
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(code, vars(module))
        return module

    return read


def test_page_of_own_networks_has_a_network_with_units(read_page):
    net = read_page("my_units").MeanConfig(n_token=11, d_model=8, unit_len=6).build()
    check_network(net)
    assert_gradient_reaches_the_first(net, TOKENS[:, :6], TOKENS[:, 6:12])


def test_page_of_own_networks_has_a_network_with_states_of_layers(read_page):
    net = read_page("my_layers").TwoSpeedConfig(n_token=11, d_model=8, n_layer=2).build()
    check_network(net)
    assert_gradient_reaches_the_first(net, TOKENS[:, :6], TOKENS[:, 6:12])


@pytest.mark.bfloat16
def test_a_state_keeps_its_precision_where_autocast_lowers_that_of_products(read_page):
    config = read_page("my_units").MeanConfig(n_token=11, d_model=8, unit_len=4)
    memory = config.build().empty_memory(3)
    with torch.autocast("cpu", torch.bfloat16):
        _, after = config.build()(TOKENS[:, :8], memory)
    dtypes = {name: tensor.dtype for name, tensor in after.tensors().items()}
    assert dtypes == {name: tensor.dtype for name, tensor in memory.tensors().items()}


def forget_all(kind):
    kind.step = lambda net, x_BD, h_BD: x_BD + 0 * h_BD


def refuse_lengths(kind):
    empty_memory = kind.empty_memory

    def refuse(net, batch_size, lengths=None):
        if lengths and lengths.mem_len not in (None, 0, 1):
            raise ValueError("mem_len: expected 0 or 1")
        return empty_memory(net, batch_size, lengths)

    kind.empty_memory = refuse


def read_by_length(kind):
    """As a window of mem_len does."""
    forward = kind.forward

    def read(net, tokens_BL, memory=None, *others):
        memory = memory or net.empty_memory(len(tokens_BL))
        logits_BLV, after = forward(net, tokens_BL, memory, *others)
        return logits_BLV * (memory.mem_len or 1), after

    kind.forward = read


def add_positions(kind):
    """Positions in the document; the first number of a state is the position of the next token."""

    def read(net, tokens_BL, memory=None, doc_pos_BL=None, n_reread=0):
        memory = memory or net.empty_memory(len(tokens_BL))
        if doc_pos_BL is None:
            doc_pos_BL = memory.h_BD[:, :1].long() + torch.arange(tokens_BL.size(1))
        states = [memory.h_BD]
        for pos_B, x_BD in zip(doc_pos_BL.t(), net.embedding(tokens_BL).unbind(1), strict=True):
            before_BD = states[-1] * (pos_B[:, None] > 0)
            h_BD = net.step(x_BD + 0.1 * pos_B[:, None], before_BD)
            states.append(torch.cat([pos_B[:, None] + 1.0, h_BD[:, 1:]], 1))
        kept_BD = states[-1 - n_reread] * (memory.mem_len > 0)
        return net.head(torch.stack(states[1:], 1)), memory._replace(h_BD=kept_BD.detach())

    kind.forward = read


@pytest.mark.parametrize("change", [forget_all, refuse_lengths, read_by_length, add_positions])
def test_right_networks_of_other_kinds_are_accepted(own_package, change):
    change(own_package.MyNetwork)
    check_network(own_package.MyConfig(n_token=11, width=8).build())


@pytest.mark.parametrize("config", ["LSTM", "TransformerXL"])
def test_network_with_frozen_weights_is_accepted(config):
    net = CONFIGS[config]().build()
    net.embedding.requires_grad_(False)
    check_network(net)


def assert_gradient_reaches_the_first(net, first_BL, second_BL):
    _, memory = net(first_BL, keep_gradient(net.empty_memory(3)))
    logits, _ = net(second_BL, memory)
    [gradient] = torch.autograd.grad(logits[:, :1].sum(), net.embedding.weight)
    # Tokens of the first segment only.
    outside = sorted({*first_BL.flatten().tolist()} - {*second_BL.flatten().tolist()})
    assert all(gradient[token].any() for token in outside)


def look_ahead(net, tokens_BL, memory):
    return net(torch.cat([tokens_BL[:, 1:], tokens_BL[:, :1]], 1), memory)


def mix_rows(net, tokens_BL, memory):
    logits_BLV, memory = net(tokens_BL, memory)
    return logits_BLV + logits_BLV.mean(0), memory


def forget(net, tokens_BL, memory):
    return net(tokens_BL)


FAULTS = {look_ahead: "later tokens", mix_rows: "other rows", forget: r"two segments of \d tokens"}


@pytest.mark.parametrize("fault", FAULTS)
def test_network_that_breaks_the_contract_is_refused_with_the_reason(net, fault):
    forward = type(net).forward

    class Faulty(type(net)):
        def forward(self, tokens_BL, memory=None, *others):
            return fault(lambda *inputs: forward(self, *inputs), tokens_BL, memory)

    net.__class__ = Faulty
    with pytest.raises(ValueError, match=f"network: .*{FAULTS[fault]}"):
        check_network(net)


def test_faults_of_rows_and_of_the_loss_are_refused_with_the_reason(own_package, monkeypatch):
    net = own_package.MyConfig(n_token=11, width=8).build()
    with monkeypatch.context() as patch:
        rows = own_package.MyMemory.rows
        patch.setattr(own_package.MyMemory, "rows", lambda memory, _: rows(memory, slice(2)))
        with pytest.raises(ValueError, match=r"network: memory\.rows gives other rows"):
            check_network(net)
    monkeypatch.setattr(net, "loss", lambda x_BL, *_: (x_BL.double(), net.empty_memory(3)))
    with pytest.raises(ValueError, match="network: loss is not that of the logits"):
        check_network(net)


def forget_to_restore(memory, tensors):
    return memory._replace(h_BD=0 * tensors["h_BD"])


def restore_own_rows(memory, tensors):
    return memory._replace(h_BD=tensors["h_BD"][:1])


def restore_only_other_sizes(memory, tensors):
    is_same = memory.batch_size == len(tensors["h_BD"])
    return memory if is_same else memory._replace(**tensors)


def resize_to_nothing(memory, lengths):
    return memory._replace(h_BD=0 * memory.h_BD, mem_len=lengths.mem_len)


def resize_without_change(memory, lengths):
    return memory._replace(mem_len=lengths.mem_len)


def resize_longer_to_nothing(memory, lengths):
    return memory._replace(h_BD=memory.h_BD * (lengths.mem_len == 1), mem_len=lengths.mem_len)


def resize_shorter_to_nothing(memory, lengths):
    return memory._replace(h_BD=memory.h_BD * (lengths.mem_len in (1, 2)), mem_len=lengths.mem_len)


def move_another(memory, device):
    return memory._replace(h_BD=memory.h_BD.flip(0))


MEMORIES = {
    forget_to_restore: ("restore", "memory.restore gives another memory"),
    restore_own_rows: ("restore", ""),
    restore_only_other_sizes: ("restore", "memory.restore gives another memory"),
    resize_to_nothing: ("resize", "memory.resize gives another memory"),
    resize_without_change: ("resize", "memory.resize leaves something where mem_len is 0"),
    resize_longer_to_nothing: (
        "resize",
        "memory.resize to a longer mem_len gives another memory",
    ),
    resize_shorter_to_nothing: (
        "resize",
        "memory.resize to a shorter mem_len gives another memory",
    ),
    move_another: ("to", "memory.to gives another memory"),
}


@pytest.mark.parametrize("fault", MEMORIES)
def test_memory_with_a_faulty_method_is_refused_with_its_name(own_package, monkeypatch, fault):
    method, problem = MEMORIES[fault]
    monkeypatch.setattr(own_package.MyMemory, method, fault)
    with pytest.raises(ValueError, match=f"network: .*{problem}"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def carry_in_evaluation(net, batch_size, lengths=None):
    return net.plain_memory(batch_size)


def carry_in_training(net, batch_size, lengths=None):
    memory = net.plain_memory(batch_size, lengths)
    return memory if lengths else memory._replace(mem_len=1)


CARRIED = {carry_in_evaluation: "in evaluation", carry_in_training: "in training"}


def test_network_that_carries_its_state_only_within_documents_is_refused(own_package, monkeypatch):
    forward = own_package.MyNetwork.forward

    def carry(net, tokens_BL, memory=None, doc_pos_BL=None, n_reread=0):
        logits_BLV, after = forward(net, tokens_BL, memory, doc_pos_BL, n_reread)
        if doc_pos_BL is not None and not after.mem_len:
            carried = memory._replace(mem_len=1)
            h_BD = forward(net, tokens_BL, carried, doc_pos_BL, n_reread)[1].h_BD
            after = after._replace(h_BD=h_BD)
        return logits_BLV, after

    monkeypatch.setattr(own_package.MyNetwork, "forward", carry)
    with pytest.raises(ValueError, match="network: in evaluation, memory has tokens where mem_len"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


@pytest.mark.parametrize("fault", CARRIED)
def test_network_that_carries_its_state_without_memory_is_refused(own_package, monkeypatch, fault):
    kind = own_package.MyNetwork
    monkeypatch.setattr(kind, "plain_memory", kind.empty_memory, raising=False)
    monkeypatch.setattr(kind, "empty_memory", fault)
    problem = f"network: {CARRIED[fault]}, memory has tokens where mem_len is 0"
    with pytest.raises(ValueError, match=problem):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def test_loss_of_other_targets_than_the_last_is_refused(net):
    class Faulty(type(net)):
        def loss(self, tokens_BL, targets_BL, *inputs):
            n_target = targets_BL.size(1)
            return super().loss(tokens_BL[:, :n_target], targets_BL, *inputs)

    net.__class__ = Faulty
    problem = "network: loss is not that of the logits, of targets of the last tokens"
    with pytest.raises(ValueError, match=problem):
        check_network(net)


def lose_memory(loss, net, tokens_BL, targets_BL, memory=None, *others):
    return loss(net, tokens_BL, targets_BL, None, *others)


def lose_other_inputs(loss, net, tokens_BL, targets_BL, memory=None, *others):
    return loss(net, tokens_BL, targets_BL, memory)


def keep_the_memory_before(loss, net, tokens_BL, targets_BL, memory=None, *others):
    nats_BL, after = loss(net, tokens_BL, targets_BL, memory, *others)
    return nats_BL, memory or after


LOSSES = {
    lose_memory: "loss after a memory is not that of the logits",
    lose_other_inputs: "loss after a memory is not that of the logits",
    keep_the_memory_before: "loss returns another memory than the call of the network",
}


@pytest.mark.parametrize("fault", LOSSES)
def test_loss_that_reads_or_returns_another_memory_than_a_call_is_refused(net, fault):
    loss = type(net).loss

    class Faulty(type(net)):
        def loss(self, *inputs):
            return fault(loss, self, *inputs)

    net.__class__ = Faulty
    with pytest.raises(ValueError, match=f"network: {LOSSES[fault]}"):
        check_network(net)


def test_network_that_drops_its_memory_in_training_mode_is_refused(net):
    class Faulty(type(net)):
        def forward(self, tokens_BL, memory=None, *others):
            return super().forward(tokens_BL, None if self.training else memory, *others)

    net.__class__ = Faulty
    with pytest.raises(ValueError, match="network: in training mode, memory has no effect"):
        check_network(net)


def test_state_with_tokens_of_an_unfinished_unit_without_memory_is_refused(monkeypatch):
    monkeypatch.setattr(UnitMemory, "forget", StateMemory.forget)
    with pytest.raises(ValueError, match=r"network: memory\.resize leaves something"):
        check_network(CONFIGS["RecurrentMemoryTransformer"]().build(), tgt_len=10)


def lose_gradient_later(memory):
    return replace(memory, has_gradient=False)


def halve_gradient(memory):
    return memory.change_each(lambda each: (each + each.detach()) / 2)


KEPT = {
    lose_gradient_later: "memory has no gradient after the second segment",
    halve_gradient: "two segments have another gradient than one with both",
}


@pytest.mark.parametrize("fault", KEPT)
def test_gradient_that_is_lost_on_its_way_is_refused(monkeypatch, fault):
    end_segment = StateMemory.end_segment
    monkeypatch.setattr(StateMemory, "end_segment", lambda memory: fault(end_segment(memory)))
    with pytest.raises(ValueError, match=f"network: {KEPT[fault]}"):
        check_network(CONFIGS["LSTM"]().build())


def pass_no_gradient(net, logits_BLV, memory):
    return memory._replace(h_BD=memory.h_BD + 0 * net.head.bias.sum())


def declare_a_gradient(net, logits_BLV, memory):
    type(memory).keep_gradient = lambda memory: memory
    return memory


def keep_the_graph(net, logits_BLV, memory):
    """Carry the last logits in the network itself, beside its memory."""
    before = getattr(net, "before", None)
    net.before = logits_BLV[:, -1:]
    if before is not None and before.requires_grad:
        logits_BLV += 0 * before
    return memory


GRADIENTS = {
    pass_no_gradient: "memory passes no gradient to the segment before",
    declare_a_gradient: "memory has no gradient after keep_gradient",
    keep_the_graph: "a gradient reaches the segment before, though memory has none",
}


@pytest.mark.parametrize("fault", GRADIENTS)
def test_gradient_of_another_reach_than_declared_is_refused(own_package, monkeypatch, fault):
    forward = own_package.MyNetwork.forward

    def change_memory(net, *inputs):
        logits_BLV, memory = forward(net, *inputs)
        logits_BLV = logits_BLV.clone()
        return logits_BLV, fault(net, logits_BLV, memory)

    monkeypatch.setattr(own_package.MyNetwork, "forward", change_memory)
    with pytest.raises(ValueError, match=f"network: {GRADIENTS[fault]}"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def test_error_of_torch_is_a_reason_in_one_line(own_package, monkeypatch):
    monkeypatch.setattr(own_package.MyMemory, "rows", lambda memory, index_B: memory)
    with pytest.raises(
        ValueError, match=r"^network: [^\n]+; docs/own_network\.md has the contract$"
    ):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def ignore_documents(forward, tokens_BL, memory, doc_pos_BL, n_reread):
    return forward(tokens_BL, memory, None, n_reread)


def keep_memory_of_documents(forward, tokens_BL, memory, doc_pos_BL, n_reread):
    logits_BLV, _ = forward(tokens_BL, memory, doc_pos_BL, n_reread)
    return logits_BLV, forward(tokens_BL, memory, None, n_reread)[1]


def begin_a_document_in_each_segment(forward, tokens_BL, memory, doc_pos_BL, n_reread):
    if doc_pos_BL is not None:
        doc_pos_BL = (doc_pos_BL - doc_pos_BL[:, :1]).clamp(min=0)
    return forward(tokens_BL, memory, doc_pos_BL, n_reread)


def remember_all(forward, tokens_BL, memory, doc_pos_BL, n_reread):
    return forward(tokens_BL, memory, doc_pos_BL, 0)


INPUTS = {
    ignore_documents: "logits change with tokens before the document",
    keep_memory_of_documents: "logits change with tokens before the document",
    begin_a_document_in_each_segment: "doc_pos_BL ends a document too early",
    remember_all: "memory has tokens of n_reread",
}


@pytest.mark.parametrize("fault", INPUTS)
def test_network_that_ignores_an_input_is_refused_with_its_name(net, fault):
    forward = type(net).forward

    class Faulty(type(net)):
        def forward(self, tokens_BL, memory=None, doc_pos_BL=None, n_reread=0):
            return fault(partial(forward, self), tokens_BL, memory, doc_pos_BL, n_reread)

    net.__class__ = Faulty
    with pytest.raises(ValueError, match=f"network: {INPUTS[fault]}"):
        check_network(net)


def test_loss_that_scores_ignored_targets_is_refused(net):
    class Faulty(type(net)):
        def loss(self, tokens_BL, targets_BL, *inputs):
            return super().loss(tokens_BL, targets_BL.clamp(min=0), *inputs)

    net.__class__ = Faulty
    with pytest.raises(ValueError, match="network: loss scores targets of -100"):
        check_network(net)
