"""Mistakes of users that the checker of a network names, and right networks that it accepts."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from txl_lightning import TransformerXLConfig, networks
from txl_lightning.model.contract_check import check_network
from txl_lightning.networks.lstm import LSTMLayer
from txl_lightning.networks.recurrent_memory import RecurrentMemoryTransformer
from txl_lightning.networks.stateful import StateMemory

SMALL = {"n_token": 11, "n_layer": 2, "n_head": 2, "d_model": 8}
LSTM = networks.LSTMConfig(n_token=11, n_layer=2, d_model=8)
UNITS = networks.RecurrentMemoryTransformerConfig(n_memory=3, unit_len=4, **SMALL)


def change_inputs(kind, change):
    """Let a network read changed embeddings."""
    forward = kind.forward

    def read(net, *inputs):
        handle = net.embedding.register_forward_hook(lambda _, given, x_BLD: change(net, x_BLD))
        try:
            return forward(net, *inputs)
        finally:
            handle.remove()

    kind.forward = read


def see_later_tokens(kind):
    change_inputs(kind, lambda net, x_BLD: x_BLD + net.training * x_BLD.mean(1, keepdim=True))


def normalize_batches(kind):
    def normalize(net, x_BLD):
        mean_D = x_BLD.mean((0, 1)) if net.training else 0
        return x_BLD - mean_D

    change_inputs(kind, normalize)


def keep_a_buffer(kind):
    kind.mean_D = 0

    def subtract(net, x_BLD):
        if net.training:
            net.mean_D = 0.9 * net.mean_D + x_BLD.detach().mean((0, 1))
        return x_BLD - net.mean_D

    change_inputs(kind, subtract)


def change_forward(kind, change):
    forward = kind.forward

    def read(net, tokens_BL, memory=None, doc_pos_BL=None, n_reread=0):
        if net.training:
            memory, doc_pos_BL, n_reread = change(memory, doc_pos_BL, n_reread)
        return forward(net, tokens_BL, memory, doc_pos_BL, n_reread)

    kind.forward = read


def ignore_documents(kind):
    change_forward(kind, lambda memory, _, n_reread: (memory, None, n_reread))


def remember_all(kind):
    change_forward(kind, lambda memory, doc_pos_BL, _: (memory, doc_pos_BL, 0))


def carry_always(kind):
    def carry(memory, *others):
        return memory and memory._replace(mem_len=1), *others

    change_forward(kind, carry)


def halve_nats(kind):
    loss = kind.loss

    def halve(net, *inputs):
        nats_BL, memory = loss(net, *inputs)
        return nats_BL * (0.5 if net.training else 1), memory

    kind.loss = halve


def take_another_path(kind):
    step = kind.step
    kind.step = lambda net, x_BD, h_BD: step(net, x_BD, h_BD * (0.5 if net.training else 1))


IN_TRAINING = {
    see_later_tokens: r"forward\(tokens_BL\) gives other logits than in evaluation",
    normalize_batches: r"forward\(tokens_BL\) gives other logits than in evaluation",
    keep_a_buffer: "two equal calls differ",
    ignore_documents: r"forward\(tokens_BL, memory, doc_pos_BL\) gives other logits",
    remember_all: r"n_reread\) returns another memory than in evaluation",
    carry_always: "memory has tokens where mem_len is 0",
    halve_nats: r"loss\(tokens_BL, targets_BL\) gives other nats than in evaluation",
    take_another_path: r"forward\(tokens_BL\) gives other logits than in evaluation",
}


@pytest.mark.parametrize("fault", IN_TRAINING)
def test_a_fault_in_training_mode_alone_is_refused_with_the_call(own_package, fault):
    fault(own_package.MyNetwork)
    with pytest.raises(ValueError, match=f"network: in training.*{IN_TRAINING[fault]}"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def drop_units(kind):
    """Drop units by a function, which the checker cannot turn off."""
    change_inputs(kind, lambda net, x_BLD: F.dropout(x_BLD, 0.5, net.training))


IN_RANDOM = {
    see_later_tokens: "logits change with later tokens",
    normalize_batches: "logits change with",
    ignore_documents: "logits change with tokens before the document",
    remember_all: "memory has tokens of n_reread",
}


@pytest.mark.parametrize("fault", IN_RANDOM)
def test_a_fault_in_training_mode_of_a_random_network_is_refused(own_package, fault):
    drop_units(own_package.MyNetwork)
    fault(own_package.MyNetwork)
    with pytest.raises(ValueError, match=f"network: in training mode: {IN_RANDOM[fault]}"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def test_loss_that_halves_nats_of_a_random_network_in_training_is_refused(own_package):
    drop_units(own_package.MyNetwork)
    halve_nats(own_package.MyNetwork)
    problem = "network: in training mode: loss after a memory is not that of the logits"
    with pytest.raises(ValueError, match=problem):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def test_network_that_drops_units_by_a_function_is_accepted(own_package):
    drop_units(own_package.MyNetwork)
    check_network(own_package.MyConfig(n_token=11, width=8).build())


RIGHT = {
    "variational dropout": {"dropout": 0.3, "dropout_type": "variational"},
    "dropout of attention": {"dropout": 0.1, "dropatt": 0.2, "loss_chunk_size": 3},
    "clusters": {"cutoffs": (4, 8), "div_val": 2, "dropout": 0.1},
    "positions of Shaw": {"positions": "shaw", "clamp_len": 20, "dropatt": 0.1},
    "pre": {"norm": "pre", "kernel": "reference", "dropatt": 0.1},
}


@pytest.mark.parametrize("name", RIGHT)
def test_transformer_xl_is_accepted_with_each_kind_of_random_numbers(name):
    check_network(TransformerXLConfig(**SMALL, mem_len=20, **RIGHT[name]).build())


@pytest.mark.parametrize("config", [LSTM, UNITS, replace(UNITS, dropatt=0.2)])
def test_network_with_a_state_is_accepted_with_dropout(config):
    check_network(replace(config, dropout=0.2).build())


def test_resize_that_keeps_the_old_length_is_refused(own_package):
    kind = own_package.MyMemory
    kind.resize = lambda memory, use: memory._replace(h_BD=memory.h_BD * (use.mem_len > 0))
    with pytest.raises(ValueError, match=r"memory\.resize to mem_len 0 keeps the old length"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def test_a_state_that_alone_has_no_gradient_is_refused_with_its_name(monkeypatch):
    end_segment = StateMemory.end_segment

    def stop_one(memory):
        states = ({**each, "c_BD": each["c_BD"].detach()} for each in memory.state_N)
        return end_segment(replace(memory, state_N=tuple(states)))

    monkeypatch.setattr(StateMemory, "end_segment", stop_one)
    with pytest.raises(ValueError, match=r"network: memory has no gradient in 0\.c_BD, though"):
        check_network(LSTM.build())


def change_states(monkeypatch, change):
    forward = LSTMLayer.forward

    def read(layer, *inputs):
        h_BLD, state = forward(layer, *inputs)
        return h_BLD, change(layer, state)

    monkeypatch.setattr(LSTMLayer, "forward", read)


def test_gradient_that_is_stopped_in_training_mode_alone_is_refused(monkeypatch):
    def stop(layer, state):
        return {name: each.detach() if layer.training else each for name, each in state.items()}

    change_states(monkeypatch, stop)
    with pytest.raises(ValueError, match="network: in training mode: memory has no gradient"):
        check_network(LSTM.build())


@pytest.mark.parametrize("config", [LSTM, UNITS])
def test_a_state_that_begins_with_other_numbers_than_zeros_is_refused(monkeypatch, config):
    kind = LSTMLayer if config is LSTM else RecurrentMemoryTransformer
    empty_state = kind.empty_state

    def begin_with_ones(part, batch_size):
        return {name: each + 1 for name, each in empty_state(part, batch_size).items()}

    monkeypatch.setattr(kind, "empty_state", begin_with_ones)
    problem = "network: empty_state has other numbers than zeros .*; return zeros, and add a param"
    with pytest.raises(ValueError, match=problem):
        check_network(config.build())


STATES = {
    "name": (lambda layer, state: {"h_BD": state["h_BD"]}, r"next state: invalid \['h_BD'\]"),
    "type": (lambda layer, state: (*state.values(),), "next state: invalid tuple"),
    "shape": (
        lambda layer, state: state | {"c_BD": state["c_BD"][:1]},
        r"next state c_BD: invalid \[1, 8\]; expected those of empty_state: \[3, 8\]",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_another_form_than_the_empty_one_is_refused(monkeypatch, name):
    change, problem = STATES[name]
    change_states(monkeypatch, change)
    with pytest.raises(ValueError, match=problem):
        LSTM.build()(torch.zeros(3, 5, dtype=torch.long))


HIDDEN = {
    "embeddings": (
        lambda net, tokens_BL, memory=None, *_: (net.embedding(tokens_BL), memory),
        r"head\(h_BLD\), of what hidden returns, gives other logits",
    ),
    "states alone": (
        lambda net, tokens_BL, *_: net.embedding(tokens_BL),
        r"hidden\(tokens_BL, memory\) returns Tensor; expected a tensor and the next memory",
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_that_returns_something_else_is_refused(own_package, name):
    own_package.MyNetwork.hidden, problem = HIDDEN[name]
    with pytest.raises(ValueError, match=problem):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


@pytest.mark.bfloat16
def test_loss_of_half_precision_is_refused(own_package):
    def score(net, tokens_BL, targets_BL, *inputs):
        logits_BLV, memory = net(tokens_BL, *inputs)
        log_BLV = logits_BLV[:, -targets_BL.size(1) :].log_softmax(-1).to(logits_BLV.dtype)
        nats_BL = -log_BLV.gather(-1, targets_BL.clamp(min=0)[..., None])[..., 0]
        return nats_BL * (targets_BL >= 0), memory

    own_package.MyNetwork.loss = score
    with pytest.raises(ValueError, match=r"with bf16-mixed, loss returns nats in torch\.bfloat16"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def test_network_that_looks_ahead_only_in_long_segments_is_refused(own_package):
    def look(net, x_BLD):
        later_BLD = x_BLD[:, 32:]
        return torch.cat([x_BLD[:, :32], later_BLD + later_BLD.sum(1, keepdim=True)], 1)

    change_inputs(own_package.MyNetwork, look)
    with pytest.raises(ValueError, match="in a segment of 70 tokens, logits change with later"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def test_network_with_as_many_positions_as_a_segment_has_is_accepted(own_package):
    table_LD = torch.randn(16, 8)

    def require_length(net, x_BLD):
        table_LD[x_BLD.size(1) - 1]  # IndexError
        return x_BLD

    change_inputs(own_package.MyNetwork, require_length)
    check_network(own_package.MyConfig(n_token=11, width=8).build())


def write_into_memory(kind):
    forward = kind.forward

    def read(net, tokens_BL, memory=None, *others):
        result = forward(net, tokens_BL, memory, *others)
        if memory:
            memory.h_BD.zero_()
        return result

    kind.forward = read


def return_logits_alone(kind):
    forward = kind.forward
    kind.forward = lambda net, *inputs: forward(net, *inputs)[0]


def divide_by_zero(kind):
    change_inputs(kind, lambda net, x_BLD: x_BLD * float("nan"))


def drop_in_evaluation(kind):
    change_inputs(kind, lambda net, x_BLD: F.dropout(x_BLD, 0.5))


def keep_states_in_the_network(kind):
    forward = kind.forward
    kind.last = None

    def read(net, tokens_BL, memory=None, *others):
        is_known = memory and net.last and net.last.batch_size == len(tokens_BL)
        logits_BLV, net.last = forward(net, tokens_BL, net.last if is_known else memory, *others)
        return logits_BLV, net.last

    kind.forward = read


def score_all_tokens(kind):
    def score(net, tokens_BL, targets_BL, *inputs):
        logits_BLV, memory = net(tokens_BL, *inputs)
        return F.cross_entropy(logits_BLV.mT, targets_BL, reduction="none"), memory

    kind.loss = score


MESSAGES = {
    write_into_memory: r"forward\(tokens_BL, memory\) changes h_BD of the memory",
    return_logits_alone: r"forward\(tokens_BL\) returns Tensor; expected a tensor and the next",
    divide_by_zero: r"forward\(tokens_BL\) returns logits that are NaN",
    drop_in_evaluation: "in evaluation, two equal calls differ: the network is random",
    keep_states_in_the_network: "two equal calls differ: .* keeps something beside its memory",
    score_all_tokens: r"loss\(tokens_BL, targets_BL of only the last 2 tokens\): Expected target",
}


@pytest.mark.parametrize("fault", MESSAGES)
def test_a_problem_names_the_call(own_package, fault):
    fault(own_package.MyNetwork)
    with pytest.raises(ValueError, match=f"network: .*{MESSAGES[fault]}"):
        check_network(own_package.MyConfig(n_token=11, width=8).build())


def raise_key_error(memory, *_):
    return {}["c_BD"]


METHODS = {
    "rows": r"memory\.rows: KeyError 'c_BD'",
    "restore": r"memory\.restore: KeyError 'c_BD'",
    "resize": r"memory\.resize: KeyError 'c_BD'",
    "tensors": r"memory\.tensors: KeyError 'c_BD'",
}


@pytest.mark.parametrize("method", METHODS)
def test_an_error_within_a_method_of_a_memory_names_it(own_package, method):
    config = own_package.MyConfig(n_token=11, width=8)
    setattr(own_package.MyMemory, method, raise_key_error)
    with pytest.raises(ValueError, match=METHODS[method]):
        check_network(config.build())
    setattr(own_package.MyMemory, method, None)
    with pytest.raises(ValueError, match=rf"memory \(MyMemory\) without a method {method}"):
        check_network(config.build())


def test_network_whose_memory_is_turned_off_is_refused(own_package):
    with pytest.raises(ValueError, match="mem_len: invalid 0; expected 1 or more"):
        check_network(own_package.MyConfig(mem_len=0).build())
