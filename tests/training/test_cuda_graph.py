"""Segments that are computed by CUDA graphs have the numbers of those computed as usual.

Graphs are imitated on a CPU (tests/helpers/late_device.py); tests marked gpu capture real ones.
"""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import MixedPrecision

from tests.helpers.late_device import imitate_graphs
from txl_lightning import LanguageModel, imports
from txl_lightning.model import EvalLengths, captured
from txl_lightning.model.captured import CapturedNetwork
from txl_lightning.training import cuda_graph
from txl_lightning.training.cuda_graph import CapturedSegment, capture_training
from txl_lightning.training.segments import compile_in_place

CAPTURED = {"settings": {"cuda_graph": True}}
LATE = {"kernel": "sdpa", "optim": {"schedule": "constant"}}


@pytest.fixture
def graphs(monkeypatch):
    with imitate_graphs(monkeypatch, captured, cuda_graph) as made:
        yield made


def is_equal(record, expected) -> bool:
    """Tell whether losses, weights after each step, and the last memory are equal bit by bit."""
    assert len(record.losses) == len(expected.losses) > 3
    same = record.losses == expected.losses
    for ours, theirs in zip(record.weights, expected.weights, strict=True):
        same = same and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    tensors = record.memory.tensors()
    others = expected.memory.tensors()
    return same and all(torch.equal(tensors[name], others[name]) for name in others)


@pytest.mark.parametrize(
    ("net", "data", "options"),
    [
        ({}, {}, {}),
        ({}, {}, {"accumulate_grad_batches": 3}),
        ({"dropout": 0.2, "dropatt": 0.1}, {}, {"accumulate_grad_batches": 2}),
        ({"dropout": 0.2, "dropout_type": "variational"}, {}, {}),
        ({"cutoffs": (100, 110), "div_val": 2}, {}, {"accumulate_grad_batches": 2}),
        ({"tie_weight": False, "loss_chunk_size": 5}, {}, {}),
        ({"positions": "learned", "clamp_len": 9}, {}, {}),
        ({"mem_len": 0}, {}, {}),
        # Documents begin within segments, and segments have unequal numbers of targets.
        ({}, {"restart_len": 11}, {"accumulate_grad_batches": 2}),
        ({}, {"ext_len": 3}, {}),
        ({"dropout": 0.1}, {}, {"precision": "bf16-mixed", "accumulate_grad_batches": 2}),
        ({"kernel": "reference"}, {}, {"precision": "bf16-true"}),
        ({}, {}, {"gradient_clip_val": 0.02}),
    ],
    ids=str,
)
def test_training_by_graphs_is_bit_by_bit_that_without(fit, graphs, net, data, options):
    net = LATE | net
    options = {"precision": "64-true"} | options
    expected = fit(net, data, **options)
    assert graphs == []
    record = fit(net | CAPTURED, data, **options)
    assert is_equal(record, expected)
    # The first segment of a pass is shorter with ext_len.
    assert len(graphs) == (4 if data.get("ext_len") else 2)
    assert sum(graph.replays for graph in graphs) == 2 * len(record.losses)


class Look(Callback):
    """Counts the replays after each segment, and changes the weights in place after two steps."""

    def __init__(self, graphs):
        self.graphs = graphs
        self.replays = []

    def on_train_batch_end(self, trainer, module, *_):
        self.replays.append(sum(graph.replays for graph in self.graphs))
        if trainer.global_step == 2:
            # As an average of weights does for a validation.
            module.load_state_dict({name: 0.9 * each for name, each in module.state_dict().items()})


def test_only_the_longest_segments_of_training_are_read_by_graphs(fit, graphs):
    """Not the last segment of a pass; also where weights are loaded meanwhile."""
    data = {"split": (0.05, 0.45, 0.5), "tgt_len": 20}
    options = {"precision": "64-true", "max_steps": 9}
    expected = fit(LATE, data, callbacks=[Look([])], **options)
    record = fit(LATE | CAPTURED, data, callbacks=[look := Look(graphs)], **options)
    assert is_equal(record, expected)
    lengths = [segment.tokens_BL.size(1) for segment in record.segments]
    assert lengths == [20, 20, 20, 14] * 2 + [20]
    assert look.replays == [2, 4, 6, 6, 8, 10, 12, 12, 14]
    assert len(graphs) == 2
    assert record.model.captured is None


@pytest.mark.parametrize(
    ("net", "data"),
    [
        ({}, {}),
        ({"dropout": 0.2, "settings": {"eval_mem_len": 11, "eval_same_length": "mem_len"}}, {}),
        ({"cutoffs": (100, 110), "div_val": 2}, {}),
        ({"mem_len": 0}, {"eval_ext_len": 3}),
        ({"memory_source": "same_layer"}, {"restart_len": 11}),
    ],
    ids=str,
)
def test_validations_in_a_fit_by_graphs_have_the_nats_of_those_without(fit, graphs, net, data):
    """Their last segment is shorter; training changes the weights in between, in place."""
    net = LATE | net
    data = {"split": (0.5, 0.4, 0.1), "eval_tgt_len": 7} | data
    options = {"precision": "64-true", "max_steps": 6, "val_check_interval": 2}
    options |= {"limit_val_batches": 1.0}
    expected = fit(net, data, **options)
    settings = net.get("settings", {}) | CAPTURED["settings"]
    record = fit(net | {"settings": settings}, data, **options)
    assert len(record.val_nats) == 3
    assert record.val_nats == pytest.approx(expected.val_nats, rel=1e-12)
    assert is_equal(record, expected)
    of_validations = [graph.replays for graph in graphs[2:]]
    # The first segment is shorter with ext_len.
    assert len(of_validations) == (2 if data.get("eval_ext_len") else 1)
    assert of_validations[-1] > 3
    assert record.model.memory_bank.captured is None


class FailInValidation(Callback):
    def on_validation_batch_end(self, *_):
        raise RuntimeError("failed in a validation")


def test_measurement_after_a_fit_that_failed_in_a_validation_is_that_of_the_weights_alone(
    fit, make_model, make_data, make_trainer, graphs
):
    """It begins with an empty memory, and calls the network: graphs may be of another device."""
    model = make_model(**LATE | CAPTURED)
    with pytest.raises(RuntimeError, match="failed in a validation"):
        fit(model=model, callbacks=[FailInValidation()], val_check_interval=2, limit_val_batches=2)
    assert len(graphs) == 3
    fresh = make_model(**LATE)
    fresh.load_state_dict(model.state_dict())
    replays = [graph.replays for graph in graphs]
    for stage in ("validate", "test"):
        measure = partial(getattr(make_trainer(limit_test_batches=3), stage), verbose=False)
        assert measure(model, make_data()) == measure(fresh, make_data())
    assert [graph.replays for graph in graphs] == replays


@pytest.mark.parametrize("net", [{}, {"dropout": 0.2, "dropatt": 0.1}])
def test_resumed_training_by_graphs_is_the_rest_of_an_uninterrupted_one(fit, graphs, tmp_path, net):
    net = LATE | net | CAPTURED
    path = tmp_path / "a.ckpt"
    whole = fit(net, max_steps=6, save=(path, 3))
    assert fit(net, max_steps=6, ckpt_path=path).continues(whole)
    assert LanguageModel.load_from_checkpoint(path).hparams["cuda_graph"] is True


def test_run_that_is_resumed_without_graphs_warns_that_sums_may_be_rounded_otherwise(
    fit, graphs, tmp_path
):
    path = tmp_path / "a.ckpt"
    whole = fit(LATE | CAPTURED, max_steps=6, save=(path, 3), precision="64-true")
    with pytest.warns(match="cuda_graph: was True, is False"):
        rest = fit(LATE, max_steps=6, ckpt_path=path, precision="64-true")
    assert rest.continues(whole)


def test_gradients_are_scaled_before_the_backward_pass_of_float16(fit, graphs):
    def run(net):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        return fit(net, plugins=[MixedPrecision("16-mixed", "cpu", scaler)], max_steps=5)

    expected = run(LATE | {"dropout": 0.2})
    record = run(LATE | {"dropout": 0.2} | CAPTURED)
    assert is_equal(record, expected)
    assert record.scales == expected.scales


def test_skipped_update_changes_nothing_of_the_next_ones(fit, graphs):
    class Spoil(Callback):
        def on_after_backward(self, trainer, module):
            if trainer.global_step == 2:
                next(module.parameters()).grad[0] = torch.nan

    def run(net):
        optim = LATE["optim"] | {"max_skipped_updates": 1}
        with pytest.warns(match="skipped"):
            return fit(net | {"optim": optim}, callbacks=[Spoil()], precision="64-true")

    assert is_equal(run(LATE | CAPTURED), run(LATE))


class Trained:
    """A network and a captured one with equal weights, which read the same segments."""

    def __init__(self, make_net, **sizes):
        self.plain = make_net(kernel="sdpa", **sizes).train()
        self.captured = CapturedNetwork(copy.deepcopy(self.plain), CapturedSegment)
        self.seed = 0

    def compute(self, net, tokens_BL, memory, seed):
        torch.manual_seed(seed)
        doc_pos_BL = torch.randint(9, tokens_BL.shape)
        nats_BL, memory = net.loss(tokens_BL, tokens_BL, memory, doc_pos_BL, 0)
        (nats_BL.sum() / 7).backward()
        return nats_BL, memory

    def assert_equal(self, n_row=2, tgt_len=5, mem_len=6):
        """Compare two segments, in which gradients accumulate."""
        self.seed += 1
        tokens_BL = torch.randint(11, (n_row, tgt_len))
        results = []
        for net in (self.captured, self.plain):
            weights = getattr(net, "net", net)
            weights.zero_grad()
            memory = self.plain.empty_memory(n_row, EvalLengths(mem_len))
            for part in range(2):
                nats_BL, memory = self.compute(net, tokens_BL, memory, self.seed + part)
            assert not any(each.requires_grad for each in memory.tensors().values())
            gradients = [each.grad for each in weights.parameters()]
            results.append([nats_BL, *memory.tensors().values(), *gradients])
        for ours, theirs in zip(*results, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, theirs)


def test_other_rows_and_lengths_of_segment_and_memory_have_graphs_of_their_own(make_net, graphs):
    trained = Trained(make_net)
    for sizes, n_graph in [
        ({}, 2), ({}, 2), ({"n_row": 1}, 2), ({}, 2), ({"n_row": 3}, 4), ({"tgt_len": 4}, 4),
        ({"tgt_len": 9}, 6), ({"mem_len": 3, "tgt_len": 9}, 6), ({"mem_len": 3, "n_row": 4}, 8),
    ]:  # fmt: skip
        trained.assert_equal(**sizes)
        assert len(graphs) == n_graph


# torch looks whether states have a gradient, and hides this warning, but not where it is an error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_layers_are_captured(make_net, graphs, monkeypatch):
    """By a backend that runs what it is given."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    trained = Trained(make_net)
    compile_in_place(trained.captured.net)
    for _ in range(2):
        trained.assert_equal()
    assert [graph.replays for graph in graphs] == [4, 4]
    torch._dynamo.reset()


def double(parameter):
    parameter.data = parameter.data * 2


@pytest.mark.parametrize(
    ("change", "is_new"),
    [
        (lambda net: net.eval(), True),
        (lambda net: net.layers[0].drop.eval(), True),
        (lambda net: net.layers[1].requires_grad_(False), True),
        (lambda net: double(net.layers[0].attention.q_net.weight), True),
        (lambda net: net.load_state_dict({k: 2 * v for k, v in net.state_dict().items()}), False),
        (
            lambda net: net.load_state_dict(
                {k: 2 * v for k, v in net.state_dict().items()}, assign=True
            ),
            True,
        ),
    ],
)
def test_changed_network_is_captured_again_unless_weights_have_new_values_only(
    make_net, graphs, change, is_new
):
    trained = Trained(make_net, dropout=0.3)
    trained.assert_equal()
    change(trained.plain)
    change(trained.captured.net)
    trained.assert_equal()
    assert len(graphs) == (4 if is_new else 2)


def test_a_copy_of_a_captured_network_computes_with_its_own_weights(make_net, graphs):
    trained = Trained(make_net)
    trained.assert_equal()
    trained.captured = copy.deepcopy(trained.captured)
    for net in (trained.plain, trained.captured.net):
        net.load_state_dict({name: 2 * each for name, each in net.state_dict().items()})
    trained.assert_equal()
    assert len(graphs) == 4


def test_a_memory_and_nats_that_are_kept_are_not_changed_by_the_next_segment(make_net, graphs):
    trained = Trained(make_net)
    tokens_BL = torch.randint(11, (2, 5))
    empty = trained.plain.empty_memory(2)
    h_BLD, memory = trained.captured.hidden(tokens_BL, empty, torch.zeros_like(tokens_BL))
    kept = [h_BLD.detach(), *memory.tensors().values(), *empty.tensors().values()]
    values = [each.clone() for each in kept]
    h_BLD.sum().backward()
    gradients = [each.grad for each in trained.captured.net.parameters() if each.grad is not None]
    values += [each.clone() for each in gradients]
    trained.captured.net.zero_grad()
    trained.compute(trained.captured, tokens_BL.flip(0), memory, 1)
    assert all(map(torch.equal, [*kept, *gradients], values))


def test_backward_pass_of_an_earlier_segment_is_an_error(make_net, graphs):
    net = make_net(kernel="sdpa").train()
    segments = CapturedNetwork(net, CapturedSegment)
    tokens_BL = torch.randint(11, (2, 5))
    inputs = tokens_BL, net.empty_memory(2), torch.zeros_like(tokens_BL)
    first_BLD, _ = segments.hidden(*inputs)
    second_BLD, _ = segments.hidden(*inputs)
    with pytest.raises(AssertionError, match="follows its own forward pass"):
        first_BLD.sum().backward()
    second_BLD.sum().backward(retain_graph=True)
    with pytest.raises(AssertionError, match="only once"):
        second_BLD.sum().backward()


@pytest.mark.parametrize(
    ("net", "data", "expected"),
    [
        ({"settings": {"recompute": True}}, {}, "model.recompute true"),
        ({}, {"micro_batches": 2}, "data.micro_batches above 1"),
        ({}, {"segments": "varlen"}, "data.segments varlen"),
        (
            {"positions": "txl_lightning.model.positions.Sinusoidal"}, {},
            "model.net.positions txl_lightning.model.positions.Sinusoidal",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_graphs_cannot_have_is_refused_before_training(
    make_model, make_data, make_trainer, graphs, monkeypatch, net, data, expected
):
    monkeypatch.setattr(imports, "ALLOWED", ["txl_lightning"])
    settings = {"cuda_graph": True} | net.get("settings", {})
    model = make_model(**LATE | net | {"settings": settings})
    trainer = make_trainer()
    trainer.fit_loop.advance = pytest.fail
    message = f"^model.cuda_graph: invalid true; expected false with {expected}$"
    with pytest.raises(ValueError, match=message):
        trainer.fit(model, datamodule=make_data(**data))


@pytest.mark.parametrize(
    ("strategy", "n_device", "name"), [("ddp", 2, "DDPStrategy"), ("fsdp2", 1, "FSDP2Strategy")]
)
def test_other_strategies_than_one_device_are_refused_with_graphs(
    make_model, make_trainer, graphs, strategy, n_device, name
):
    model = make_model(settings={"cuda_graph": True})
    # A call of fit would start this program again for the second one.
    model.trainer = make_trainer(strategy=strategy, devices=n_device)
    with pytest.raises(ValueError, match=f"expected false with several devices or {name}$"):
        capture_training(model)


def test_anomaly_detection_is_refused_with_graphs_before_the_first_step(fit, graphs):
    with pytest.raises(ValueError, match=r"expected false with trainer\.detect_anomaly"):
        fit(CAPTURED, detect_anomaly=True)
    assert fit.record.losses == []


def test_hooks_in_the_network_are_refused_with_graphs(fit, make_model, graphs):
    model = make_model(settings={"cuda_graph": True})
    model.net.layers[1].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="expected false with hooks or methods of your own"):
        fit(model=model)


def test_a_machine_without_a_gpu_refuses_graphs_in_one_line_before_a_folder_is_made(refused, small):
    code, line = refused("fit", *small, "--model.cuda_graph=true")
    assert code == 2
    assert line == "model.cuda_graph: invalid true; expected false on a device of type cpu"
    assert not list(Path().glob("**/version_0"))


def test_checkpoint_of_captured_training_is_measured_without_a_gpu(
    fit, make_data, make_trainer, monkeypatch, tmp_path
):
    path = tmp_path / "a.ckpt"
    with monkeypatch.context() as patch, imitate_graphs(patch, captured, cuda_graph):
        fit(LATE | CAPTURED, max_steps=3, save=(path, 3))
    model = LanguageModel.load_from_checkpoint(path)
    assert make_trainer().validate(model, make_data(), verbose=False)[0]["val/nats"] > 0


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize(
    ("changes", "precision", "accumulate"),
    [
        ({}, "32-true", 1),
        ({}, "bf16-mixed", 2),
        ({}, "16-mixed", 2),
        ({"cutoffs": (100, 110)}, "bf16-mixed", 2),
        ({"settings": {"compile": True}}, "bf16-mixed", 1),
    ],
)
def test_training_by_graphs_of_a_gpu_is_that_without(fit, precision, accumulate, changes):
    net = {"d_model": 32, "optim": {"schedule": "constant"}} | changes
    options = {"accelerator": "gpu", "precision": precision, "accumulate_grad_batches": accumulate}
    expected = fit(net, **options)
    settings = changes.get("settings", {}) | CAPTURED["settings"]
    record = fit(net | {"settings": settings}, **options)
    assert record.losses == pytest.approx(expected.losses, rel=1e-3)
    for name, theirs in expected.weights[-1].items():
        torch.testing.assert_close(record.weights[-1][name], theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_validations_in_a_fit_by_graphs_of_a_gpu_have_the_nats_of_those_without(fit, precision):
    net = {"d_model": 32, "optim": {"schedule": "constant"}}
    options = {"accelerator": "gpu", "precision": precision, "max_steps": 6}
    options |= {"val_check_interval": 2, "limit_val_batches": 1.0}
    expected = fit(net, **options)
    record = fit(net | CAPTURED, **options)
    assert len(record.val_nats) == 3
    assert record.val_nats == pytest.approx(expected.val_nats, rel=1e-2)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:::torch")
def test_dropout_of_graphs_on_a_gpu_changes_from_step_to_step_and_continues_after_a_resume(
    fit, tmp_path
):
    net = {"d_model": 32, "dropout": 0.3, "dropatt": 0.1, "optim": {"schedule": "constant"}}
    net |= CAPTURED
    path = tmp_path / "a.ckpt"
    whole = fit(net, accelerator="gpu", max_steps=6, save=(path, 3))
    assert fit(net, accelerator="gpu", max_steps=6, ckpt_path=path).losses == whole.losses[3:]
    segments = CapturedNetwork(whole.model.net.cuda().train(), CapturedSegment)
    tokens_BL = torch.zeros(4, 8, dtype=torch.long, device="cuda")
    inputs = tokens_BL, whole.model.net.empty_memory(4), torch.zeros_like(tokens_BL)
    first_BLD, second_BLD = (segments.hidden(*inputs)[0].detach() for _ in range(2))
    assert not torch.equal(first_BLD, second_BLD)
