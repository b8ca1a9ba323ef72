"""Hooks, derived classes and patches act in evaluation and generation as in the network's loss."""

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import MethodType

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

from txl_lightning import Adaptation, KeyValueCache, TransformerXL, generate, score, stream_nats
from txl_lightning.generation.state import start_decoding
from txl_lightning.model import is_absolute
from txl_lightning.model.kernels import reference
from txl_lightning.model.parts import Dropout, has_hooks, is_changed
from txl_lightning.model.positions import AbsoluteSinusoidal, Sinusoidal
from txl_lightning.model.transformer_xl import FeedForward, Layer, RelativeAttention

IDS = torch.randint(11, (31,), generator=torch.Generator().manual_seed(1))


def halve(module, inputs, output):
    return output / 2


class OtherLayer(Layer):
    def forward(self, h_BLD, *inputs):
        return super().forward(h_BLD, *inputs).flip(-1)


class OtherAttention(RelativeAttention):
    def forward(self, *inputs):
        return -super().forward(*inputs)


class OtherFeedForward(FeedForward):
    def forward(self, h_BLD):
        return super().forward(h_BLD).relu()


class OtherStates(TransformerXL):
    def hidden(self, *inputs, **named):
        h_BLD, memory = super().hidden(*inputs, **named)
        return h_BLD * 3, memory


class OtherCalls(TransformerXL):
    def forward(self, *inputs, **named):
        logits_BLV, memory = super().forward(*inputs, **named)
        return logits_BLV * torch.linspace(-1, 1, 11), memory

    def loss(self, tokens_BL, targets_BL, *inputs, **named):
        logits_BLV, memory = self(tokens_BL, *inputs, **named)
        return nn.functional.cross_entropy(logits_BLV.mT, targets_BL, reduction="none"), memory


class OtherLogits(TransformerXL):
    def forward(self, *inputs, **named):
        logits_BLV, memory = super().forward(*inputs, **named)
        return logits_BLV * torch.linspace(-1, 1, 11), memory


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs):
        return self.inner(*inputs) * 2


class WrapperOfInputs(Wrapper):
    def forward(self, h_BLD, *inputs):
        return self.inner(h_BLD.flip(-1), *inputs)


class LowRank(nn.Module):
    """An adapter of a linear map."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.in_features, 2).double()
        self.up = nn.Linear(2, inner.out_features).double()

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


class DoubledDropout(nn.Dropout):
    def forward(self, x):
        return super().forward(x) * 2


class OwnAbsolute(AbsoluteSinusoidal):
    pass


class OwnRelative(Sinusoidal):
    """Distances in shares of the farthest one."""

    def forward(self, distance_T):
        return super().forward(distance_T * 50 // len(distance_T))


def become(kind):
    def change(net):
        net.__class__ = kind

    return change


def change_layer(name, kind):
    def change(net):
        for layer in net.layers:
            (layer if name is None else layer.get_submodule(name)).__class__ = kind

    return change


def patch_forward(net):
    layer = net.layers[1]
    layer.forward = MethodType(lambda self, *inputs: -Layer.forward(self, *inputs), layer)


def wrap(name, kind):
    def change(net):
        net.set_submodule(name, kind(net.get_submodule(name)))

    return change


def attend_evenly(q_BLHK, *others):
    return reference.attend(q_BLHK * 0, *others)


class OwnLayer(nn.Module):
    """It reads the segment alone."""

    def __init__(self, inner):
        super().__init__()
        self.feed_forward = inner.feed_forward

    def forward(self, h_BLD, past):
        return self.feed_forward(h_BLD)


class NoLayer(nn.Module):
    def forward(self, h_BLD, past):
        return h_BLD


def leave_out(net):
    net.layers[1] = NoLayer()


def change_kernel(net):
    net.layers[0].attention.attend = attend_evenly


def steer(net):
    net.run_layer = lambda layer, *inputs: layer(*inputs) * 2


def use_own_positions(kind):
    def change(net):
        net.positions = kind(net.config).double()
        if kind is OwnRelative:
            for weight in net.positions.parameters():
                nn.init.normal_(weight)

    return change


def hook(name, register="register_forward_hook"):
    def act(module, *others):
        if register == "register_forward_pre_hook":
            return (others[0][0] / 2, *others[0][1:])
        return halve(module, *others)

    return lambda net: getattr(net.get_submodule(name), register)(act)


def halve_logits(module, inputs, output):
    logits_BLV, memory = output
    return logits_BLV / 2, memory


def read_next_ids(module, inputs):
    tokens_BL, *others = inputs
    return ((tokens_BL + 1) % 11, *others)


def patch_network(net):
    net.forward = lambda *inputs: halve_logits(net, inputs, TransformerXL.forward(net, *inputs))


CHANGES = {
    "hook of the network": lambda net: net.register_forward_hook(halve_logits),
    "hook before the network": lambda net: net.register_forward_pre_hook(read_next_ids),
    "hook of the softmax": hook("head"),
    "hook of a layer": hook("layers.0"),
    "hook before a layer": hook("layers.1", "register_forward_pre_hook"),
    "hook of attention": hook("layers.1.attention"),
    "hook of a dropout": hook("layers.0.drop"),
    "hook of keys and values": hook("layers.0.attention.kv_net"),
    "hook of queries": hook("layers.0.attention.q_net"),
    "hook of a norm": hook("layers.0.norm_before"),
    "hook of the feed-forward layer": hook("layers.0.feed_forward"),
    "hook of the embedding": hook("embedding"),
    "derived layer": change_layer(None, OtherLayer),
    "derived attention": change_layer("attention", OtherAttention),
    "derived feed-forward layer": change_layer("feed_forward", OtherFeedForward),
    "derived dropout": change_layer("drop", DoubledDropout),
    "derived hidden": become(OtherStates),
    "derived forward and loss": become(OtherCalls),
    "derived forward": become(OtherLogits),
    "patched forward": patch_forward,
    "patched forward of the network": patch_network,
    "wrapped layer": wrap("layers.1", Wrapper),
    "wrapped inputs of a layer": wrap("layers.1", WrapperOfInputs),
    "own layer first": wrap("layers.0", OwnLayer),
    "own layer last": wrap("layers.1", OwnLayer),
    "layer left out": leave_out,
    "wrapped attention": wrap("layers.1.attention", Wrapper),
    "adapter of keys and values": wrap("layers.0.attention.kv_net", LowRank),
    "adapter of queries": wrap("layers.0.attention.q_net", LowRank),
    "adapter of the output": wrap("layers.0.attention.o_net", LowRank),
    "parametrization": lambda net: parametrize.register_parametrization(
        net.layers[0].attention.kv_net, "weight", Doubled()
    ),
    "own kernel": change_kernel,
    "own call of layers": steer,
    "own absolute positions": use_own_positions(OwnAbsolute),
    "own relative positions": use_own_positions(OwnRelative),
}


@contextmanager
def hook_all_modules():
    handle = register_module_forward_hook(
        lambda module, inputs, output: output / 2 if isinstance(module, Layer) else None
    )
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture
def changed(make_net, request):
    net = make_net(mem_len=7)
    before = read_alone(net)
    CHANGES[request.param](net)
    # A change that has no effect would test nothing.
    assert not torch.allclose(read_alone(net), before)
    return net


def read_alone(net: TransformerXL, memory=None) -> torch.Tensor:
    """Return the nats of a text as the network's own loss gives them."""
    nats = []
    with torch.no_grad():
        for start in range(0, len(IDS) - 1, 6):
            tokens = IDS[None, start : start + 7]
            nats_BL, memory = net.loss(tokens[:, :-1], tokens[:, 1:], memory)
            nats.append(nats_BL)
    return torch.cat(nats, 1)


def continue_alone(net: TransformerXL) -> list[int]:
    tokens = IDS[None, :5]
    memory = None
    # `generate` reads the last token of a prompt alone.
    _, memory = net(tokens[:, :-1], memory)
    new = tokens[:, -1:]
    chosen = []
    for _ in range(9):
        logits_BLV, memory = net(new, memory)
        new = logits_BLV[:, -1:].argmax(-1)
        chosen.append(int(new))
    return chosen


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_network_reads_kept_keys_as_it_reads_states(make_net, name, norm):
    net = make_net(mem_len=7, norm=norm)
    CHANGES[name](net)
    cache = net.empty_cache(1)
    assert isinstance(cache, KeyValueCache) == (name != "own absolute positions")
    torch.testing.assert_close(read_alone(net, cache), read_alone(net), rtol=0, atol=1e-12)


@pytest.mark.parametrize("changed", [name for name in CHANGES if "loss" not in name], indirect=True)
@torch.no_grad()
def test_the_loss_of_a_changed_network_is_that_of_the_logits_of_its_calls(changed):
    logits_BLV, _ = changed(IDS[None, :9])
    nats_BL, _ = changed.loss(IDS[None, :9], IDS[None, 4:10])
    expected = nn.functional.cross_entropy(logits_BLV[0, -6:], IDS[4:10], reduction="none")
    torch.testing.assert_close(nats_BL[0], expected, rtol=0, atol=1e-12)


def test_a_hook_of_a_softmax_in_clusters_acts_on_losses(make_net):
    net = make_net(cutoffs=[3, 7], div_val=2)
    net.head.register_forward_hook(lambda module, inputs, logp_BLV: logp_BLV.flip(-1))
    logits_BLV, _ = net(IDS[None, :9])
    nats_BL, _ = net.loss(IDS[None, :9], IDS[None, 1:10])
    expected = nn.functional.cross_entropy(logits_BLV[0], IDS[1:10], reduction="none")
    torch.testing.assert_close(nats_BL[0], expected, rtol=0, atol=1e-5)


# torch warns that ids have no gradient.
@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("kind", ["hook", "pre_hook"])
def test_backward_hooks_of_the_network_get_the_gradient_of_its_logits(make_net, kind):
    net = make_net(mem_len=7)
    seen = []
    register = getattr(net, f"register_full_backward_{kind}")
    register(lambda module, *gradients: seen.append(gradients[-1][0]))
    nats_BL, _ = net.loss(IDS[None, :9], IDS[None, 1:10])
    nats_BL.sum().backward()
    [d_BLV] = seen
    # Softmax less 1 at the target.
    torch.testing.assert_close(d_BLV.sum(-1), torch.zeros(1, 9).double(), rtol=0, atol=1e-12)
    assert (d_BLV.gather(-1, IDS[None, 1:10, None]) < 0).all()


@pytest.mark.parametrize("changed", CHANGES, indirect=True)
def test_a_changed_network_is_scored_as_by_its_own_loss(changed):
    expected = read_alone(changed)
    for adaptation in (Adaptation(), Adaptation(rate=1e-12)):
        actual = stream_nats(changed, IDS, batch_size=1, tgt_len=6, adaptation=adaptation)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("changed", [*CHANGES][:-2], indirect=True)
@torch.no_grad()
def test_a_changed_network_generates_the_likeliest_tokens_of_its_calls(changed):
    assert generate(changed, IDS[:5], 9, temperature=0).tolist() == continue_alone(changed)


@pytest.mark.parametrize("changed", [*CHANGES][:-2], indirect=True)
def test_candidates_of_a_changed_network_are_scored_as_by_its_own_loss(changed):
    _, memory = changed(IDS[None, :4])
    expected, _ = changed.loss(IDS[None, 4:10], IDS[None, 5:11], memory)
    [actual] = score(changed, IDS[:5], [IDS[5:11]])
    torch.testing.assert_close(actual, expected[0].detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [Layer, RelativeAttention, Dropout])
def test_a_class_that_is_patched_for_the_process_acts_in_evaluation(make_net, monkeypatch, kind):
    net = make_net(mem_len=7)
    before = read_alone(net)
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *inputs: forward(self, *inputs) * 2)
    expected = read_alone(net)
    assert not torch.allclose(expected, before)
    actual = stream_nats(net, IDS, batch_size=1, tgt_len=6)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_hooks_of_all_modules_act_in_evaluation(make_net):
    net = make_net(mem_len=7)
    before = read_alone(net)
    with hook_all_modules():
        expected = read_alone(net)
        actual = stream_nats(net, IDS, batch_size=1, tgt_len=6)
    assert not torch.allclose(expected, before)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@torch.inference_mode()
def test_a_hook_within_a_text_acts_on_what_is_read_from_then_on(make_net):
    net = make_net(mem_len=7)
    readings = []
    for memory in (net.empty_memory(1), net.empty_cache(1)):
        _, memory = net.hidden(IDS[None, :5], memory)
        handle = net.layers[0].register_forward_hook(halve)
        changed, _ = net.hidden(IDS[None, 5:9], memory)
        handle.remove()
        plain, _ = net.hidden(IDS[None, 5:9], memory)
        assert not torch.allclose(changed, plain)
        readings.append([changed, plain])
    torch.testing.assert_close(*readings, rtol=0, atol=1e-12)


@torch.inference_mode()
def test_dropout_that_is_left_on_acts_with_kept_keys_as_with_states(make_net):
    net = make_net(dropout=0.5)
    net.layers[1].drop.train()
    outputs = []
    for memory in (net.empty_memory(1), net.empty_cache(1)):
        torch.manual_seed(3)
        outputs.append(net.hidden(IDS[None, :5], memory)[0])
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
    assert not torch.allclose(outputs[0], net.hidden(IDS[None, :5])[0])


def remove_layers(net):
    net.layers = net.layers[:1]


def remove_layers_and_tell(net):
    remove_layers(net)
    net.config = replace(net.config, n_layer=1)


def append_layer(net):
    net.layers.append(Layer(net.config).double())


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "absolute_learned"])
@pytest.mark.parametrize("change", [remove_layers, remove_layers_and_tell, append_layer])
def test_another_number_of_layers_is_refused_in_one_line(make_net, change, positions):
    net = make_net(positions=positions, clamp_len=20)
    change(net)
    expected = rf"^layers: invalid {len(net.layers)}; expected 2, as its positions have"
    for read in (read_alone, partial(stream_nats, tokens=IDS, batch_size=1, tgt_len=6)):
        with pytest.raises(ValueError, match=expected):
            read(net)


def test_layers_of_any_container_may_be_shared_and_copied(make_net):
    net = make_net(mem_len=7)
    net.layers = nn.Sequential(net.layers[1], net.layers[1])
    expected = read_alone(net)
    torch.testing.assert_close(read_alone(deepcopy(net)), expected, rtol=0, atol=0)
    actual = stream_nats(net, IDS, batch_size=1, tgt_len=6)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_own_absolute_positions_are_refused_where_the_built_in_ones_are(make_net):
    net = make_net()
    net.positions = OwnAbsolute(net.config)
    assert is_absolute(net)
    with pytest.raises(ValueError, match=r"ext_len: invalid 0.*positions are absolute"):
        start_decoding(net, [IDS[:4]])


def test_hooks_of_fsdp2_are_no_change_also_while_weights_are_whole(make_net):
    net = make_net(mem_len=7)
    expected = read_alone(net)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
        assert has_hooks(net)
        net.unshard()
        assert not is_changed(net)
        assert not net.has_own_calls
        torch.testing.assert_close(read_alone(net), expected, rtol=0, atol=1e-12)
    finally:
        distributed.destroy_process_group()
