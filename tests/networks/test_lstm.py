"""An LSTM equals its equations, token by token: Hochreiter and Schmidhuber 1997, Gers et al. 2000.

in, forget, out = sigmoid(net)    s_t = forget s_{t-1} + in tanh(net_c)    y_t = out tanh(s_t)
"""

import pytest
import torch

from txl_lightning.networks import LSTMConfig

B = 3
D = 7
N_LAYER = 2
GATES = ("in", "forget", "cell", "out")  # the order of torch's rows


@pytest.fixture
def net():
    """A network in float64, in eval mode; every weight differs from its initial value."""
    net = LSTMConfig(n_token=11, n_layer=N_LAYER, d_model=D).build().double().eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return net


def read_cell(layer, x_D, y_D, s_D):
    """Return y and s of one layer after a token of one row."""
    nets = {}
    for n, gate in enumerate(GATES):
        rows = slice(n * D, (n + 1) * D)
        of_x = layer.of_inputs.weight[rows] @ x_D + layer.of_inputs.bias[rows]
        of_y = layer.of_states.weight[rows] @ y_D + layer.of_states.bias[rows]
        nets[gate] = of_x + of_y
    forget_D, in_D, out_D = (1 / (1 + (-nets[gate]).exp()) for gate in ("forget", "in", "out"))
    s_D = forget_D * s_D + in_D * nets["cell"].tanh()
    return out_D * s_D.tanh(), s_D


def read_slowly(net, tokens_BL, y_NBD, s_NBD, doc_pos_BL):
    """Return the logits of a segment, and the next y and s, row by row and token by token."""
    logits = [[None] * tokens_BL.size(1) for _ in range(B)]
    after = [[None] * B for _ in range(N_LAYER)]
    for b in range(B):
        state = [(y_NBD[n, b], s_NBD[n, b]) for n in range(N_LAYER)]
        for position, token in enumerate(tokens_BL[b]):
            x_D = net.embedding.weight[token]
            for n, layer in enumerate(net.layers):
                is_old = doc_pos_BL[b, position] > 0
                y_D, s_D = (each_D * is_old for each_D in state[n])
                state[n] = read_cell(layer, x_D, y_D, s_D)
                x_D = state[n][0]
            logits[b][position] = net.embedding.weight @ x_D + net.head.out.bias
        for n in range(N_LAYER):
            after[n][b] = torch.stack(state[n])
    after_NB2D = torch.stack([torch.stack(rows) for rows in after])
    return torch.stack([torch.stack(row) for row in logits]), after_NB2D


def make_documents(kind, n_token):
    doc_pos_BL = torch.arange(9, 9 + n_token).repeat(B, 1)
    if kind == "begin in rows":
        doc_pos_BL[0] = torch.arange(n_token)
        doc_pos_BL[1, n_token // 2 :] = torch.arange(n_token - n_token // 2)
        doc_pos_BL[2, -1] = 0
    return doc_pos_BL


@pytest.mark.parametrize("documents", ["go on", "begin in rows"])
@pytest.mark.parametrize("n_token", [1, 2, 7])
def test_an_lstm_reads_as_its_equations_do_with_all_gradients(net, n_token, documents):
    tokens_BL = torch.randint(11, (B, n_token))
    doc_pos_BL = make_documents(documents, n_token)
    state_NB2D = torch.randn(N_LAYER, B, 2, D).double().requires_grad_()
    y_NBD, s_NBD = state_NB2D.unbind(2)
    tensors = {}
    for n in range(N_LAYER):
        tensors |= {f"{n}.h_BD": y_NBD[n], f"{n}.c_BD": s_NBD[n]}
    memory = net.empty_memory(B).keep_gradient().restore(tensors)
    logits_BLV, memory = net(tokens_BL, memory, doc_pos_BL)
    after = memory.tensors()
    states = [torch.stack([after[f"{n}.h_BD"], after[f"{n}.c_BD"]], 1) for n in range(N_LAYER)]
    fast = (logits_BLV, torch.stack(states))
    slow = read_slowly(net, tokens_BL, y_NBD, s_NBD, doc_pos_BL)
    inputs = [*net.parameters(), state_NB2D]
    grads = []
    for read in (fast, slow):
        total = sum((each * each.detach().cos()).sum() for each in read)
        grads.append(torch.autograd.grad(total, inputs))
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)
