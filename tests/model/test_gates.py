"""Gated residual connections (GTrXL) follow the equations of their paper."""

import pytest
import torch

from txl_lightning import TransformerXL, TransformerXLConfig

GATED = {"norm": "pre", "gate": "gru"}


def gate_slowly(gate, x_BLD, y_BLD):
    """Section 3.2 of Parisotto et al. 2020, vector by vector, with their names."""
    W_r, W_z, W_g = gate.w_net.weight.chunk(3)
    U_r, U_z, U_g = *gate.u_net.weight.chunk(2), gate.reset_net.weight
    out = []
    for x, y in zip(x_BLD.flatten(0, 1), y_BLD.flatten(0, 1), strict=True):
        r = 1 / (1 + torch.exp(-(W_r @ y + U_r @ x)))
        z = 1 / (1 + torch.exp(-(W_z @ y + U_z @ x - gate.b_D)))
        h = torch.tanh(W_g @ y + U_g @ (r * x))
        out.append((1 - z) * x + z * h)
    return torch.stack(out).view_as(x_BLD)


def call_slowly(layer, E_BLD, memory_BMD, terms, mask):
    """Y = g(E, ReLU(Attention(LayerNorm(E)))); E' = g(Y, ReLU(f(LayerNorm(Y))))."""
    context = layer.norm_before(memory_BMD), layer.norm_before(E_BLD)
    attention_BLD = layer.attention(context[1], context, terms, mask)
    Y_BLD = gate_slowly(layer.residual, E_BLD, attention_BLD.clamp(min=0))
    f = layer.feed_forward
    return gate_slowly(f.residual, Y_BLD, f.net(f.norm_before(Y_BLD)).clamp(min=0))


def test_gated_layer_and_its_gradients_follow_the_equations_of_the_paper(make_net):
    net = make_net(**GATED)
    layer, memory = net.layers[0], net(torch.randint(11, (3, 6)))[1]
    h_BLD = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    memory_BMD, mask = memory.h_NBMD[0], memory.attention_mask(5)
    terms = net.positions(memory.distances(5))[0]
    results, weights = [], [h_BLD, *layer.parameters()]
    for call in (layer, lambda *inputs: call_slowly(layer, *inputs)):
        out = call(h_BLD, memory_BMD, terms, mask)
        results.append([out, *torch.autograd.grad(out.square().sum(), weights, retain_graph=True)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.any()


@pytest.mark.parametrize(("bias", "most"), [(None, 0.3), (30.0, 1e-6)])
@torch.no_grad()
def test_new_gated_layers_are_near_the_identity_by_their_bias(bias, most):
    sizes = {"n_token": 11, "n_layer": 2, "d_model": 64, "mem_len": 6, "final_norm": False}
    net = TransformerXL(TransformerXLConfig(**sizes, **GATED))
    gates = [gate for layer in net.layers for gate in (layer.residual, layer.feed_forward.residual)]
    for gate in gates if bias else ():
        gate.b_D.fill_(bias)
    h_BLD = torch.randn(3, 6, 64)
    _, memory = net.read_embeddings(h_BLD)
    # What goes into the second layer, and what came out of the first one.
    change_BLD = memory.h_NBMD[1] - h_BLD
    assert change_BLD.norm() < most * h_BLD.norm()
