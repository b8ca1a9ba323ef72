"""The loss of a large vocabulary, a few tokens at a time."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from txl_lightning.model.softmax import IGNORED


class Largest(TorchDispatchMode):
    """The most numbers that any one result has."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for found in result if isinstance(result, tuple | list) else [result]:
            if isinstance(found, torch.Tensor):
                self.most = max(self.most, found.numel())
        return result


@pytest.mark.parametrize("chunk", [1, 4, 63])
def test_by_chunks_the_nats_and_every_gradient_are_the_same(make_net, chunk):
    whole, cut = make_net(), make_net(loss_chunk_size=chunk)
    cut.load_state_dict(whole.state_dict())
    tokens, targets = torch.randint(11, (2, 3, 5))
    targets[0, 0] = IGNORED
    found = []
    for net in (whole, cut):
        nats, _ = net.loss(tokens, targets)
        found.append([nats, *torch.autograd.grad(nats.sum(), list(net.parameters()))])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)
    assert found[1][0][0, 0] == 0


def test_no_more_logits_than_those_of_a_chunk_are_ever_held(make_net):
    for chunk, at_once in ((None, 30), (4, 4)):
        net = make_net(n_token=5000, loss_chunk_size=chunk)
        tokens = torch.randint(5000, (2, 15))
        with Largest() as largest:
            net.loss(tokens, tokens)[0].sum().backward()
        # The gradient of the embedding is the largest thing that is left.
        assert largest.most == max(at_once * 5000, 5000 * 8)


def test_evaluation_is_by_chunks_too(make_net):
    net = make_net(n_token=5000, loss_chunk_size=4)
    tokens = torch.randint(5000, (2, 15))
    with torch.inference_mode(), Largest() as largest:
        net.loss(tokens, tokens)
    assert largest.most <= 4 * 5000


def test_a_chunk_of_nothing_is_refused(make_net):
    with pytest.raises(ValueError, match="loss_chunk_size: invalid 0; expected at least 1"):
        make_net(loss_chunk_size=0)
