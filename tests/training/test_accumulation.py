"""The gradient of a step is the mean over all its targets, however many each segment has."""

from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

from txl_lightning.data.stream import IGNORED, Segment
from txl_lightning.training.segments import StepMean

Weights = dict[str, torch.Tensor]
SGD = {"name": "sgd", "lr": 0.5, "momentum": 0.9, "schedule": "constant"}
LINES = {"document_unit": "lines"}
SHORT = {"split": (0.05, 0.45, 0.5), "tgt_len": 20}


@pytest.fixture(autouse=True)
def lines(text_file):
    """Make the text one of short lines, and then one long line: few targets, and then many."""
    text = bytearray(text_file.read_bytes())
    text[:3000:3] = b"\n" * len(text[:3000:3])
    text[1::37] = b"\n" * len(text[1::37])
    text_file.write_bytes(text)


class Gradients(Callback):
    """Keeps the gradients that the optimizer is given, those before clipping, and their norms."""

    def __init__(self) -> None:
        self.taken = []
        self.norms = []

    def on_before_optimizer_step(self, trainer, module, optimizer):
        # The callbacks of a user come first.
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        self.norms.append(torch.nn.utils.get_total_norm(gradients).item())

    def on_before_zero_grad(self, trainer, module, optimizer):
        self.keep(module)

    def on_train_end(self, trainer, module):
        self.keep(module)

    def keep(self, module):
        named = module.net.named_parameters()
        gradients = {name: each.grad.clone() for name, each in named if each.grad is not None}
        if gradients:
            self.taken.append(gradients)


def compute_slowly(net, segments: list[Segment], memory) -> tuple[Weights, object]:
    """Return the gradient of the mean over all targets of a step, by one backward pass."""
    total = 0.0
    n_target = 0
    for segment in segments:
        empty = (segment.doc_pos_BL[:, 0] == 0).all()
        nats_BL, memory = net.loss(
            segment.tokens_BL,
            segment.targets_BL,
            None if empty else memory,
            segment.doc_pos_BL,
            segment.n_reread,
        )
        total = total + nats_BL.sum()
        n_target += int((segment.targets_BL != IGNORED).sum())
    gradients = torch.autograd.grad(total / n_target, list(net.parameters()))
    names = [name for name, _ in net.named_parameters()]
    return dict(zip(names, gradients, strict=True)), memory


def train_slowly(net, groups: list[list[Segment]], clip: float = 0.0) -> tuple[list, list[float]]:
    optimizer = torch.optim.SGD(net.parameters(), lr=SGD["lr"], momentum=SGD["momentum"])
    memory = None
    weights = []
    norms = []
    for segments in groups:
        gradients, memory = compute_slowly(net, segments, memory)
        for name, parameter in net.named_parameters():
            parameter.grad = gradients[name]
        norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), clip or 1e9).item())
        optimizer.step()
        weights.append({name: each.clone() for name, each in net.state_dict().items()})
    return weights, norms


def cut_into_groups(segments: list[Segment], sizes: list[int]) -> list[list[Segment]]:
    rest = iter(segments)
    return [[next(rest) for _ in range(size)] for size in sizes]


def assert_equal(actual: list[Weights], expected: list[Weights], atol: float = 1e-11) -> None:
    assert len(actual) == len(expected) > 0
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("data", "options", "sizes"),
    [
        (LINES, {}, [3] * 4),
        (LINES | {"order": "shuffled"}, {}, [3] * 4),
        ({"segments": "varlen"}, {}, [3] * 4),
        (LINES | {"segments": "varlen", "ext_len": 5, "order": "rolled"}, {}, [3] * 4),
        (SHORT, {}, [3] * 4),
        (LINES | {"micro_batches": 3}, {}, [3] * 4),
        (LINES, {"gradient_clip_val": 0.02}, [3] * 4),
        (LINES, {"net": {"settings": {"recompute": True}}}, [3] * 4),
        # Lightning takes a step where its epoch ends.
        (LINES, {"limit_train_batches": 5, "max_epochs": 2, "max_steps": -1}, [3, 2, 3, 2]),
        (LINES, {"limit_train_batches": 2, "max_steps": 3}, [2] * 3),
        (SHORT, {"overfit_batches": 4}, [3, 1, 3, 1]),
    ],
    ids=str,
)
def test_step_has_the_gradient_of_the_mean_over_all_its_targets(
    fit, make_model, data, options, sizes
):
    net = {"optim": SGD} | options.get("net", {})
    look = Gradients()
    options = options | {"net": net, "callbacks": [look], "accumulate_grad_batches": 3}
    usual = {"max_steps": len(sizes), "precision": "64-true", "log_every_n_steps": 1}
    record = fit(data=data, **usual | options)
    counts = [segment.loss_denominator for segment in record.segments]
    assert len({*counts}) > 1
    groups = cut_into_groups(record.segments, sizes)
    seed_everything(3, verbose=False)
    clip = options.get("gradient_clip_val", 0.0)
    weights, norms = train_slowly(make_model(optim=SGD).double().net, groups, clip)
    assert_equal(record.weights, weights)
    assert look.norms == pytest.approx(norms, rel=1e-9)
    ends = [sum(sizes[: n + 1]) - 1 for n in range(len(sizes))]
    assert [record.logged[n]["train/grad_norm"] for n in ends] == pytest.approx(norms, rel=1e-6)
    tokens = [record.logged[n]["train/tokens_seen"] for n in ends]
    assert tokens == pytest.approx(tokens_until(record.segments, ends))


def tokens_until(segments: list[Segment], ends: list[int]) -> list[int]:
    return [sum(each.targets_BL.numel() for each in segments[: n + 1]) for n in ends]


class ScaledPrecision(MixedPrecision):
    """The gradient scaler of 16-mixed, around a computation in float32."""

    def forward_context(self):
        return nullcontext()


@pytest.mark.parametrize(
    ("options", "atol"),
    [
        ({"plugins": ["scaler"]}, 1e-6),
        ({"precision": "32-true"}, 1e-6),
        pytest.param({"precision": "bf16-mixed"}, 0.02, marks=pytest.mark.bfloat16),
    ],
    ids=str,
)
def test_gradient_in_any_precision_is_of_the_mean_over_all_targets(fit, make_model, options, atol):
    look = Gradients()
    if "plugins" in options:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        options = {"plugins": [ScaledPrecision("16-mixed", "cpu", scaler)]}
    usual = {"accumulate_grad_batches": 4, "max_steps": 1, "callbacks": [look]}
    record = fit({"optim": SGD}, LINES, **usual | options)
    seed_everything(3, verbose=False)
    net = make_model().double().net
    expected, _ = compute_slowly(net, record.segments, None)
    [taken] = look.taken
    largest = max(each.abs().max() for each in expected.values())
    for name, gradient in taken.items():
        assert (gradient - expected[name]).abs().max() < atol * largest, name


def test_step_that_a_checkpoint_has_cut_is_the_mean_of_its_remaining_targets(
    fit, make_model, tmp_path
):
    class Save(Checkpoint):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 3 and not path.exists():
                trainer.save_checkpoint(path)

    path = tmp_path / "within.ckpt"
    usual = {"accumulate_grad_batches": 3, "max_steps": 2, "precision": "64-true"}
    whole = fit({"optim": SGD}, LINES, callbacks=[Save()], **usual)
    look = Gradients()
    with pytest.warns(match="saved in mid-step"):
        rest = fit({"optim": SGD}, LINES, ckpt_path=path, callbacks=[look], **usual)
    assert [segment.index for segment in rest.segments] == [4, 5]
    net = make_model().double().net
    net.load_state_dict(whole.weights[0])
    saved = torch.load(path, weights_only=True)["txl_lightning"]["memory"]
    memory = net.empty_memory(1).restore(saved)
    gradients, _ = compute_slowly(net, rest.segments, memory)
    assert_equal(look.taken, [gradients])


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_of_another_loader_count_their_targets(make_model, make_trainer, accumulate):
    ids_NT = torch.randint(256, (20, 9))
    pairs = [(ids_T[:-1].clone(), ids_T[1:].clone()) for ids_T in ids_NT]
    for n, (_, targets_L) in enumerate(pairs[:12]):
        targets_L[n % 4 + 1 :] = IGNORED
    seed_everything(3, verbose=False)
    model = make_model(optim=SGD).double()
    start = {name: each.clone() for name, each in model.net.state_dict().items()}
    options = {"max_steps": -1, "max_epochs": 1, "check_val_every_n_epoch": 1}
    options |= {"accumulate_grad_batches": accumulate, "precision": "64-true"}
    loader = DataLoader(pairs, batch_size=4)
    # With accumulation, the last step has one batch.
    make_trainer(**options).fit(model, loader, loader)
    taken = {name: each.clone() for name, each in model.net.state_dict().items()}
    model.net.load_state_dict(start)
    rows = list(range(0, 20, 4 * accumulate))
    groups = [[Segment.from_batch(stack(pairs[n : n + 4 * accumulate]), 256)] for n in rows]
    weights, _ = train_slowly(model.net, groups)
    assert_equal([taken], weights[-1:])


def stack(pairs) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(map(torch.stack, zip(*pairs, strict=True)))


def test_a_fit_that_ends_within_a_step_leaves_nothing_for_the_next_fit(
    fit, make_model, make_data, make_trainer
):
    class Stop(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 3:
                raise KeyboardInterrupt

    usual = {"accumulate_grad_batches": 3, "max_steps": 2, "precision": "64-true"}
    seed_everything(3, verbose=False)
    model = make_model(optim=SGD)
    with pytest.raises(SystemExit):
        fit(model=model, data=LINES, callbacks=[Stop()], **usual)
    start = {name: each.clone() for name, each in model.net.state_dict().items()}
    record = fit(model=model, data=LINES, **usual | {"max_steps": 1})
    net = make_model().double().net
    net.load_state_dict(start)
    weights, _ = train_slowly(net, [record.segments])
    assert_equal(record.weights, weights)


def test_segments_of_equal_numbers_of_targets_change_no_gradient():
    mean = StepMean()
    # Nothing that could be multiplied.
    mean.parameters = [None]
    mean.largest = 96.5
    assert [mean.weigh(96.5) for _ in range(7)] == [1.0] * 7
    mean.finish(7)


@pytest.mark.parametrize("counts", [(1, 5000, 3), (5000, 1, 0), (0, 7, 900)])
def test_no_weight_of_a_segment_is_above_one(counts):
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.zeros(1, dtype=torch.float64)
    mean = StepMean()
    mean.parameters = [parameter]
    for n in counts:
        weight = mean.weigh(n)
        assert 0 <= weight <= 1
        # The mean of a segment's targets is 2, and Lightning divides it.
        parameter.grad += weight * 2.0 * bool(n) / len(counts)
    mean.finish(len(counts))
    assert parameter.grad.item() == pytest.approx(2.0, rel=1e-12)
