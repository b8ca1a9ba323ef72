"""A matrix as state, read in chunks, equals its recurrence, token by token."""

import copy
import math

import pytest
import torch
from torch import nn

from txl_lightning import networks
from txl_lightning.networks import gated_delta_net, mamba2
from txl_lightning.networks.matrix_state import convolve_causally, find_decays, read_in_chunks

B = 3
H = 2
K = 5
P = 4
FAR = 1 << 30  # a document that began long ago


def read_delta_token(state, q, k, v, write, decay):
    """Equation 10 of Yang et al. 2024, for one token of one head; q and k get a length of 1."""
    k = k / k.norm()
    q = q / (q.norm() * math.sqrt(K))
    state = decay * (state - write * torch.outer(state @ k, k)) + write * torch.outer(v, k)
    return state, state @ q


def read_mamba_token(state, q, k, v, decay):
    """Equation 1 of Dao and Gu 2024, for one token of one head: C is q, B is k, d_t x_t is v."""
    state = decay * state + torch.outer(v, k)
    return state, state @ q


NETWORKS = {
    "gated_delta_net": (gated_delta_net.read_chunk, read_delta_token, 4),
    "mamba2": (mamba2.read_chunk, read_mamba_token, 3),
}


def make_delta(n_head):
    delta = gated_delta_net.GatedDelta(networks.GatedDeltaNetConfig(n_head=n_head, d_key=1))
    return delta, delta.decay_bias_H


def make_mixer(n_head):
    mixer = mamba2.Mixer(networks.Mamba2Config(d_model=n_head, expand=1, d_head=1))
    return mixer, mixer.step_bias_H


def make_inputs(n_input, n_token):
    random = torch.Generator().manual_seed(n_token)
    sizes = [(K,), (K,), (P,), (1,)][:n_input]
    inputs = [torch.randn(B, n_token, H, *size, generator=random).double() for size in sizes]
    if n_input == 4:
        inputs[3] = 2 * inputs[3].sigmoid()
    log_decay = -torch.rand(B, n_token, H, generator=random).double()
    state = torch.randn(B, H, P, K, generator=random).double()
    return [each.requires_grad_() for each in (*inputs, log_decay, state)]


def read_slowly(read_token, inputs, doc_pos):
    *inputs, log_decay, state = inputs
    outputs = torch.zeros(B, log_decay.size(1), H, P).double()
    after = torch.zeros(B, H, P, K).double()
    for b in range(B):
        for h in range(H):
            s = state[b, h]
            for t in range(log_decay.size(1)):
                s = s * (doc_pos[b, t] > 0)
                values = (each[b, t, h] for each in inputs)
                s, outputs[b, t, h] = read_token(s, *values, log_decay[b, t, h].exp())
            after[b, h] = s
    return outputs, after


def make_documents(kind, n_token):
    doc_pos = torch.full((B, n_token), FAR) + torch.arange(n_token)
    if kind == "begin in rows":
        doc_pos[0] = torch.arange(n_token)
        start = n_token // 2
        doc_pos[1, start:] = torch.arange(n_token - start)
        doc_pos[2, n_token - 1] = 0
    return doc_pos


@pytest.mark.parametrize("documents", ["go on", "begin in rows"])
@pytest.mark.parametrize(("n_token", "chunk_len"), [(1, 64), (7, 64), (9, 4), (8, 4), (3, 1)])
@pytest.mark.parametrize("name", NETWORKS)
def test_chunks_read_as_the_recurrence_does_with_all_gradients(name, n_token, chunk_len, documents):
    read_chunk, read_token, n_input = NETWORKS[name]
    *inputs, state = tensors = make_inputs(n_input, n_token)
    doc_pos = make_documents(documents, n_token)
    fast = read_in_chunks(read_chunk, inputs, state, doc_pos, chunk_len)
    slow = read_slowly(read_token, tensors, doc_pos)
    torch.testing.assert_close(fast, slow)
    gradients = [
        torch.autograd.grad(sum((each * each).sum() for each in result), tensors)
        for result in (fast, slow)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("allowed", [True, False])
def test_only_a_state_with_negative_eigenvalues_counts_equal_tokens_modulo_two(allowed):
    settings = {"n_layer": 1, "d_model": 8, "n_head": 2, "n_tap": 1, "allow_neg_eigval": allowed}
    delta = gated_delta_net.GatedDelta(networks.GatedDeltaNetConfig(**settings)).double()
    x_BLD = torch.ones(1, 1, 8).double()
    with torch.no_grad():
        delta.log_rate_H.fill_(-50)  # no decay
        delta.write.weight.fill_(5)  # a sigmoid of 1
    state = delta.empty_state(1)
    is_empty = []
    for _ in range(5):
        with torch.no_grad():
            _, state = delta(x_BLD, state, torch.full((1, 1), FAR))
        is_empty.append(state["state_BHPK"].abs().max().item() < 1e-9)
    assert is_empty == [False, allowed, False, allowed, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_mixed", [True, False])
def test_a_state_with_negative_eigenvalues_does_not_grow_in_half_precision(is_mixed, dtype):
    """A token is repeated, whose writes are of nearly 2 and are never forgotten."""
    settings = {"n_layer": 1, "d_model": 32, "n_head": 2, "allow_neg_eigval": True}
    delta = gated_delta_net.GatedDelta(networks.GatedDeltaNetConfig(**settings))
    x_BLD = torch.randn(1, 1, 32)
    with torch.no_grad():
        delta.log_rate_H.fill_(-20)
        delta.write.weight.copy_(x_BLD[0].expand(2, -1))
    x_BLD = x_BLD.expand(1, 250, 32)
    doc_pos_BL = torch.full((1, 250), FAR)

    def find_largest(is_half):
        layer = copy.deepcopy(delta).to(dtype if is_half and not is_mixed else None)
        state = layer.empty_state(1)
        inputs_BLD = x_BLD.to(next(layer.parameters()).dtype)
        with torch.no_grad(), torch.autocast("cpu", dtype, enabled=is_half and is_mixed):
            for _ in range(8):
                _, state = layer(inputs_BLD, state, doc_pos_BL)
        return state["state_BHPK"].abs().max().item()

    assert find_largest(is_half=True) == pytest.approx(find_largest(is_half=False), rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_keys_of_zeros_have_finite_outputs_and_gradients(dtype):
    delta = gated_delta_net.GatedDelta(networks.GatedDeltaNetConfig(d_model=8, n_head=2)).to(dtype)
    # A silu of so little is 0.
    nn.init.constant_(delta.qkv.weight, -30)
    nn.init.constant_(delta.conv_XW, 1)
    x_BLD = torch.ones(1, 6, 8, dtype=dtype, requires_grad=True)
    out_BLD, _ = delta(x_BLD, delta.empty_state(1), torch.full((1, 6), FAR))
    out_BLD.sum().backward()
    assert out_BLD.isfinite().all()
    assert x_BLD.grad.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in delta.parameters())


def test_a_large_decay_takes_no_digits_of_those_after_it():
    log_decay_BCH = -torch.rand(B, 20, H).double()
    log_decay_BCH[:, 7] = -1e6
    doc_pos_BC = make_documents("begin in rows", 20)
    expected_BHCT = find_decays(log_decay_BCH, doc_pos_BC).float()
    decay_BHCT = find_decays(log_decay_BCH.float(), doc_pos_BC)
    torch.testing.assert_close(decay_BHCT, expected_BHCT, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("build", [make_delta, make_mixer])
def test_most_heads_of_a_new_network_keep_half_of_a_state_for_some_tokens(build):
    torch.manual_seed(0)
    layer, step_bias_H = build(n_head=256)
    halves = math.log(2) / (layer.log_rate_H.exp() * nn.functional.softplus(step_bias_H))
    assert (halves > 2).float().mean() > 0.7
    assert 5 < halves.median() < 50


@pytest.mark.parametrize("build", [make_delta, make_mixer])
def test_a_convolution_of_a_new_network_begins_as_torch_begins_one(build):
    torch.manual_seed(0)
    layer, _ = build(n_head=256)
    n_channel, n_tap = layer.conv_XW.shape
    of_torch = dict(nn.Conv1d(n_channel, n_channel, n_tap, groups=n_channel).named_parameters())
    for name, ours in layer.named_parameters():
        if name.startswith("conv"):
            theirs = of_torch["bias" if "bias" in name else "weight"]
            limits = [torch.stack([each.min(), each.max()]) for each in (ours, theirs)]
            torch.testing.assert_close(*limits, rtol=0.05, atol=0)
            torch.testing.assert_close(ours.std(), theirs.std(), rtol=0.05, atol=0)


def test_strong_decay_has_finite_gradients():
    *inputs, log_decay, state = make_inputs(3, 64)
    chunk = [*inputs, log_decay * 1e4]
    outputs, after = read_in_chunks(mamba2.read_chunk, chunk, state, make_documents("", 64), 64)
    (outputs.sum() + after.sum()).backward()
    assert all(each.grad.isfinite().all() for each in (*inputs, log_decay, state))


@pytest.mark.parametrize("cut", [0, 1, 2, 5])
def test_convolution_reads_the_last_tokens_of_a_document_across_segments(cut):
    n_token = 7
    n_tap = 4
    x = torch.randn(B, n_token, 3).double()
    weight = torch.randn(3, n_tap).double()
    before = torch.randn(B, n_tap - 1, 3).double()
    doc_pos = make_documents("begin in rows", n_token)
    first, left = convolve_causally(x[:, :cut], before, weight, doc_pos[:, :cut])
    second, last = convolve_causally(x[:, cut:], left, weight, doc_pos[:, cut:])
    actual = torch.cat([first, second], 1)
    joined = torch.cat([before, x], 1)
    for b in range(B):
        for t in range(n_token):
            taps = min(n_tap, int(doc_pos[b, t]) + 1)
            stop = n_tap + t
            expected = (joined[b, stop - taps : stop] * weight.T[n_tap - taps :]).sum(0)
            torch.testing.assert_close(actual[b, t], expected)
    torch.testing.assert_close(last, joined[:, -(n_tap - 1) :])
