"""Properties of the network."""

import copy
import pickle

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model import EvalLengths
from txl_lightning.model.parts import Dropout, VariationalDropout
from txl_lightning.model.reading import Reader

EXACT_KERNELS = ["auto", "per_head", "reference", "sdpa"]


def read_in_segments(net, tokens_BL, lengths, mem_len):
    memory = net.empty_memory(len(tokens_BL), EvalLengths(mem_len))
    parts = []
    for part_BL in tokens_BL.split(lengths, dim=1):
        logits_BLV, memory = net(part_BL, memory)
        parts.append(logits_BLV)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [({}, [1] * 9), ({}, [4, 4, 1]), ({}, [63, 5]), ({"norm": "pre"}, [2, 7])]
    + [({"kernel": kernel}, [2, 7]) for kernel in EXACT_KERNELS]
    + [({"positions": name, "clamp_len": 5}, [1] * 15) for name in ("learned", "shaw")]
    + [({"cutoffs": (3, 6), "div_val": 2, "d_embed": 4}, [4, 5])],
)
def test_reading_in_segments_equals_reading_at_once(make_net, changes, lengths):
    net = make_net(**changes)
    tokens = torch.randint(11, (3, sum(lengths)))
    in_parts = read_in_segments(net, tokens, lengths, mem_len=sum(lengths))
    torch.testing.assert_close(in_parts, net(tokens)[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint64]
)
@pytest.mark.parametrize("changes", [{}, {"cutoffs": (3, 6), "div_val": 2, "d_embed": 4}])
def test_ids_of_any_integer_type_are_read(make_net, changes, dtype):
    net = make_net(**changes)
    tokens = torch.randint(11, (2, 6))
    expected = net.loss(tokens[:, :-1], tokens[:, 1:])[0]
    small = tokens.to(dtype)
    torch.testing.assert_close(net(small)[0], net(tokens)[0], rtol=0, atol=0)
    nats = net.loss(small[:, :-1], small[:, 1:])[0]
    torch.testing.assert_close(nats, expected, rtol=0, atol=0)
    with torch.inference_mode():
        reader = Reader(net)
        read = [reader(ids, reader.empty_memory(2, EvalLengths(6)))[0] for ids in (small, tokens)]
    torch.testing.assert_close(*read, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_numbers_that_are_no_ids_are_refused(make_net, dtype):
    with pytest.raises(RuntimeError, match="indices"):
        make_net()(torch.ones(1, 3).to(dtype))


def test_inputs_are_unchanged(make_net):
    net = make_net().train()
    before, tokens = torch.randint(11, (2, 2, 5))
    _, memory = net(before)
    kept = copy.deepcopy((tokens, memory.h_NBMD, memory.filled_B))
    net(tokens, memory)
    for expected, actual in zip(kept, (tokens, memory.h_NBMD, memory.filled_B), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("kind", [lambda net: net, Reader])
@torch.inference_mode()
def test_memory_of_other_sizes_or_rows_is_refused(make_net, kind):
    tokens = torch.randint(11, (2, 5))
    net = kind(make_net())
    for changes in ({"n_layer": 3}, {"d_model": 12}):
        with pytest.raises(ValueError, match=r"memory: invalid .*; expected {'n_layer': 2, "):
            net(tokens, kind(make_net(**changes))(tokens)[1])
    with pytest.raises(ValueError, match="memory: invalid 3 rows; expected 2"):
        net(tokens, net.empty_memory(3))
    with pytest.raises(ValueError, match="batch_size: invalid -1; expected 0 or more"):
        net.empty_memory(-1)
    with pytest.raises(ValueError, match="n_reread: invalid 6; expected 0 to all"):
        net.hidden(tokens, n_reread=6)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"dropout": 0.3}, Dropout),
        ({"dropatt": 0.3}, Dropout),
        ({"dropout": 0.3, "dropout_type": "variational"}, VariationalDropout),
    ],
)
def test_dropout_applies_only_in_training_and_has_one_type(make_net, changes, kind):
    net = make_net(**changes)
    tokens = torch.randint(11, (2, 5))
    drops = [module for module in net.modules() if isinstance(module, torch.nn.Dropout)]
    assert {(type(drop), drop.p) for drop in drops} == {(kind, net.config.dropout)}
    assert torch.equal(net(tokens)[0], net(tokens)[0])
    logits, _ = net.train()(tokens)
    assert not torch.equal(logits, net(tokens)[0])
    gradients = torch.autograd.grad(logits.sum(), list(net.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_variational_dropout_drops_the_same_units_of_a_row_and_others_of_each_segment():
    drop = VariationalDropout(0.25).train()
    ones = torch.ones(50, 9, 200)
    dropped = drop(ones)
    assert torch.equal(dropped, dropped[:, :1].expand(-1, 9, -1))
    assert not torch.equal(dropped[0], dropped[1])
    assert not torch.equal(drop(ones), dropped)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(drop.eval()(ones), ones)


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, 0),
        ({"tie_weight": False}, 11 * 8),
        ({"norm": "pre"}, 16),
        ({"untie_r": True}, 2 * 8),
        # narrow embeddings; a projection up, one down
        ({"d_embed": 3}, -11 * 5 + 2 * 24),
    ],
)
def test_network_has_the_parameters_of_the_paper(make_net, changes, more):
    # q, k, v, o, r; feed-forward; two norms
    layer = 5 * 64 + 2 * 8 * 32 + 40 + 2 * 16
    embedding_bias_u_v = 11 * 8 + 11 + 2 * 8
    actual = sum(parameter.numel() for parameter in make_net(**changes).parameters())
    assert actual == embedding_bias_u_v + 2 * layer + more


@pytest.mark.parametrize(
    ("changes", "deviations"),
    [
        ({}, {"bias": 0, "": 0.02}),
        ({"init": "uniform", "init_range": 0.2}, {"bias": 0, "norm": 0.02, "": 0.2 / 3**0.5}),
        ({"positions": "learned", "clamp_len": 99}, {"bias": 0, "b_NCH": 0, "": 0.02}),
        ({"positions": "shaw", "clamp_len": 99}, {"bias": 0, "": 0.02}),
        ({"positions": "absolute_learned", "clamp_len": 99}, {"bias": 0, "": 0.02}),
        (
            {"cutoffs": (200, 350), "div_val": 2, "init_std": 0.1},
            {"bias": 0, "projections": 0.01, "downs": 0.01, "": 0.1},
        ),
    ],
    ids=str,
)
def test_initial_weights_have_the_published_deviations(changes, deviations):
    config = TransformerXLConfig(d_model=256, n_layer=2, n_token=500, untie_r=True, **changes)
    for name, parameter in TransformerXL(config).named_parameters():
        expected = next(deviations[part] for part in deviations if part in name)
        mean = 1.0 if "norm" in name and "bias" not in name else 0.0
        assert parameter.mean().item() == pytest.approx(mean, abs=0.03), name
        assert parameter.std().item() == pytest.approx(expected, rel=0.15), name
        if config.init == "uniform" and "norm" not in name:
            assert parameter.abs().max() <= config.init_range, name


def test_memory_source_is_the_layer_below_or_the_same_layer(make_net):
    tokens = torch.randint(11, (2, 6))
    below = make_net()
    same = make_net(memory_source="same_layer")
    same.load_state_dict(below.state_dict())
    _, memory = below(tokens)
    _, above = same(tokens)
    torch.testing.assert_close(above.h_NBMD[0], memory.h_NBMD[1])
    last, _ = below.hidden(tokens)
    torch.testing.assert_close(above.h_NBMD[1], last.detach())
    assert not torch.allclose(same(tokens, above)[0], below(tokens, memory)[0])


def test_queries_are_normalized_with_pre_and_not_with_pre_kv(make_net):
    tokens = torch.randint(11, (2, 6))
    nets = {norm: make_net(norm=norm, n_layer=1) for norm in ("pre", "pre_kv")}
    nets["pre_kv"].load_state_dict(nets["pre"].state_dict())
    assert not torch.allclose(nets["pre"](tokens)[0], nets["pre_kv"](tokens)[0])
    for net in nets.values():
        # Without a query every score of (a) and (b) is 0.
        net.layers[0].attention.q_net.weight.data.zero_()
    torch.testing.assert_close(nets["pre"](tokens)[0], nets["pre_kv"](tokens)[0])


class RecordedCalls(TorchDispatchMode):
    """Every operation and its arguments, in order."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("begin", ["construction", "unpickling"])
def test_a_new_network_calls_a_vector_function_on_one_thread_of_the_cpu(make_net, begin):
    # On several threads MKL's first vector function is sometimes wrong: initialize_vector_math.
    net = make_net()
    pickled = pickle.dumps(net)
    with torch.device("meta"), RecordedCalls() as recorded:
        pickle.loads(pickled) if begin == "unpickling" else TransformerXL(net.config)
    calls = [args for func, args in recorded.calls if func is torch.ops.aten.sin.default]
    [[angle]] = calls
    assert (angle.device.type, angle.dtype, angle.numel()) == ("cpu", torch.float32, 1)
