"""The check of a GPU finds kernels that are wrong, and keeps what it has found."""

import gc
import json
import math
import os
import signal
import subprocess
import sys
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import einsum
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from experiments.gpu import check, correctness, operations, parts, speed, trainer
from experiments.speed.cases import Case
from experiments.speed.contestants import has
from tests.helpers.late_device import imitate_graphs
from tests.helpers.waiting import wait_until
from txl_lightning import TransformerXL
from txl_lightning.evaluation.protocols import PROTOCOLS
from txl_lightning.model import EvalLengths, captured, ring
from txl_lightning.model.kernels import KERNELS, per_head, reference, sdpa
from txl_lightning.training import cuda_graph


class SpoilGradient(torch.autograd.Function):
    """Identity whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def change(**changes):
    """Return the reference with some of its inputs changed, each by a function of all of them."""
    names = "q", "kv", "terms", "mask", "dropatt"

    def attend(*inputs):
        given = dict(zip(names, inputs, strict=True))
        return reference.attend(
            *(changes.get(name, lambda g, n=name: g[n])(given) for name in names)
        )

    return attend


def change_term(name, function):
    def change_terms(given):
        term = getattr(given["terms"], name)
        return replace(given["terms"], **{name: None if term is None else function(term)})

    return change(terms=change_terms)


def see_only_near_states(given):
    mask_BLS = given["mask"].clone()
    n_query, n_state = mask_BLS.shape[1:]
    mask_BLS[..., : max(n_state - n_query - 4, 0)] = False
    return mask_BLS


def ignore_documents(given):
    n_query, n_state = given["mask"].shape[1:]
    causal_LS = torch.ones(n_query, n_state, dtype=torch.bool).tril(n_state - n_query)
    return given["mask"] | causal_LS


def attend_with_unscaled_dropout(q_BLHK, kv, terms, mask, dropatt):
    return reference.attend(q_BLHK, kv, terms, mask, dropatt) * (1 - dropatt)


def attend_with_another_mask_of_dropout_in_backward(q_BLHK, kv, terms, mask, dropatt):
    k_BSHK, value_BSHK = kv.unbind(2)
    weight_BHLS = reference.weigh_states(q_BLHK, k_BSHK, terms, mask)
    first, second = (F.dropout(weight_BHLS, dropatt) for _ in range(2))
    return einsum("bhls,bshk->blhk", first.detach() + second - second.detach(), value_BSHK)


def return_zeros(*inputs):
    return reference.attend(*inputs) * 0


def attend_without_gradients(*inputs):
    return SpoilGradient.apply(reference.attend(*inputs), 0.0)


def attend_without_the_last_tile(q_BLHK, kv, terms, mask, dropatt):
    out_BLHK = reference.attend(q_BLHK, kv, terms, mask, dropatt)
    n_whole = q_BLHK.size(1) // 32 * 32
    return torch.cat([out_BLHK[:, :n_whole], torch.zeros_like(out_BLHK[:, n_whole:])], dim=1)


BROKEN = {
    "all outputs are 0": return_zeros,
    "all gradients are 0": attend_without_gradients,
    "a gradient is 0": change(q=lambda given: SpoilGradient.apply(given["q"], 0.0)),
    "a gradient is NaN": change(q=lambda given: SpoilGradient.apply(given["q"], torch.nan)),
    "old states are not seen": change(mask=see_only_near_states),
    "documents are ignored": change(mask=ignore_documents),
    "distances are shifted by one": change_term("r_THK", lambda r: r.roll(1, dims=0)),
    "biases of distances are of the first head": change_term(
        "b_TH", lambda b: b[:, :1].expand_as(b)
    ),
    "u has no gradient": change_term("u_HK", torch.Tensor.detach),
    "v is left out": change_term("v_HK", torch.zeros_like),
    "far distances have no gradient": change_term(
        "r_THK", lambda r: torch.cat([r[: len(r) // 2].detach(), r[len(r) // 2 :]])
    ),
    "far distances are all 0": change_term(
        "r_THK", lambda r: torch.cat([r[: len(r) // 4] * 0, r[len(r) // 4 :]])
    ),
    "scores by distance have no scale": change_term("r_THK", lambda r: r * r.size(-1) ** 0.5),
    "kept weights are not scaled": attend_with_unscaled_dropout,
    "backward drops other weights": attend_with_another_mask_of_dropout_in_backward,
    "the last tile is not written": attend_without_the_last_tile,
}


# Packages that a machine with a GPU and Lightning may lack.
COLLECT = """
import sys
lacking = "jsonargparse docstring_parser typeshed_client wandb optuna moto s3fs ray".split()
sys.modules |= dict.fromkeys(lacking)
import pytest
import experiments.gpu.check, experiments.speed.contestants
from txl_lightning import CorpusDataModule, LanguageModel
sys.exit(pytest.main(["--collect-only", "-q", "-m", "gpu", *sys.argv[1:]]))
"""


def judge(attend, dtype=torch.float32, cases=correctness.SMALL):
    """Tell for each case, and with dropout, whether a kernel is found right."""
    found = correctness.kernel_differences(attend, dtype, "cpu", cases)
    return [parts.is_right(each, dtype) for _, each in found]


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_kernel_is_found(fault):
    assert not all(judge(BROKEN[fault]))


@pytest.mark.parametrize("kernel", [reference, sdpa, per_head])
def test_a_right_kernel_is_right(kernel):
    assert judge(kernel.attend) == [True] * (len(correctness.SMALL) + 1)


@pytest.mark.slow
def test_a_right_kernel_is_right_in_bfloat16_at_the_sizes_of_a_gpu():
    assert all(judge(sdpa.attend, torch.bfloat16, correctness.ON_GPU))


def test_a_kernel_that_returns_zeros_is_right_in_no_case():
    assert not any(judge(return_zeros))


def test_no_kernel_is_right_where_the_reference_computes_nothing(monkeypatch):
    """As on a device that runs no program, where all tensors are 0 and so equal."""
    right = reference.attend
    monkeypatch.setattr(reference, "attend", lambda *inputs: right(*inputs) * 0)
    assert not any(judge(return_zeros))


def test_the_reference_is_computed_on_the_cpu_in_float64_for_any_device(monkeypatch):
    used = set()
    right = reference.attend

    def note(q_BLHK, *others):
        used.add((q_BLHK.device.type, q_BLHK.dtype))
        return right(q_BLHK, *others)

    monkeypatch.setattr(reference, "attend", note)
    # A device without values.
    found = correctness.kernel_differences(sdpa.attend, torch.float32, "meta", correctness.SMALL)
    assert not any(parts.is_right(each, torch.float32) for _, each in found)
    assert used == {("cpu", torch.float64)}


@pytest.mark.filterwarnings("ignore:.*cannot be verified")
def test_outputs_of_the_original_are_compared_in_float64_once_and_in_float32_with_each_kernel():
    found = list(parts.compare_golden(smoke=True, ends_at=math.inf))
    kinds = Counter(row["dtype"] for row in found)
    assert kinds == {"torch.float64": 1, "torch.float32": len(KERNELS) - 1}
    assert all(row["right"] and row["files"] == 2 for row in found)


@pytest.mark.filterwarnings("ignore:.*cannot be verified")
@pytest.mark.parametrize(
    "fault",
    [
        "all outputs are 0",
        "old states are not seen",
        "distances are shifted by one",
        "v is left out",
    ],
)
def test_outputs_of_the_original_find_a_broken_kernel_in_float32(monkeypatch, fault):
    monkeypatch.setitem(KERNELS, "broken", BROKEN[fault])
    names = ["default", "prenorm_longmem_clamp"]
    assert parts.compare_files("broken", torch.float32, 1e-3, names)["wrong"].keys() == {*names}


@pytest.mark.parametrize(
    ("part", "result"),
    [
        ({}, "all right"),
        ({"found": [{"right": True}, {"steps": 3}]}, "all right"),
        ({"found": [{"right": False}]}, "not all right"),
        ({"status": "failed with exit code 1"}, "not all right"),
        ({"status": "stopped after 9 s"}, "incomplete"),
        ({"status": "left out: no time was left"}, "incomplete"),
        ({"found": [{"left out": "no time was left"}]}, "incomplete"),
    ],
)
def test_a_check_that_was_stopped_or_left_something_out_is_not_all_right(part, result):
    whole = {"status": "done", "found": [{"right": True}]}
    assert check.judge({"parts": {"kernel": whole, "speed": whole | part}}) == result


def test_lines_printed_by_libraries_are_no_findings(tmp_path, monkeypatch, capsys):
    def print_and_find(smoke, ends_at):
        print("a warning", end="")
        yield {"right": True}

    monkeypatch.setattr(speed, "measure_costs", print_and_find)
    findings = tmp_path / "card.jsonl"
    check.run_here("costs", True, 9.0, findings)
    with findings.open("a") as file:
        file.write('{"part": "costs", "found": {"ri')
    assert check.read_findings(findings, "costs") == [{"right": True}]
    assert check.read_findings(findings, "speed") == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_check_that_is_killed_has_written_what_it_has_found(tmp_path, repository, number):
    command = [sys.executable, "-m", "experiments.gpu.check", "--smoke"]
    process = subprocess.Popen([*command, "--results", tmp_path], cwd=repository)
    findings = tmp_path / "cpu-smoke.jsonl"
    wait_until(lambda: findings.exists() and findings.read_text().count("\n") >= 5)
    process.send_signal(number)
    process.wait()
    found = [json.loads(line) for line in findings.read_text().splitlines() if line.endswith("}")]
    assert {"costs", "kernels"} <= {each["part"] for each in found}
    result = json.loads((tmp_path / "cpu-smoke.json").read_text())
    assert result["parts"]["costs"]["status"] == "done"


def test_a_module_within_a_package_that_lacks_it_is_not_there():
    assert has("json.decoder")
    assert not has("json.nowhere")
    assert not has("nowhere.json")


@pytest.mark.slow
def test_the_check_and_its_tests_need_no_package_of_the_command_line_or_of_dashboards(repository):
    this = Path(__file__)
    files = [path for path in this.parent.rglob("test_*.py") if path != this]
    files = [str(path) for path in files if "pytest.mark.gpu" in path.read_text()]
    words = [sys.executable, "-c", COLLECT, *files]
    done = subprocess.run(words, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with_tests = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert {str(repository / name) for name in with_tests} == {*files}


@pytest.mark.parametrize(
    "measure",
    [
        speed.measure_speed,
        speed.measure_inference,
        trainer.train_in_each_way,
        trainer.train_others,
    ],
)
def test_each_network_has_a_speed_at_tiny_sizes(measure):
    with mock.patch.dict(os.environ):  # Lightning leaves the variables of fsdp2.
        found = [each for each in measure(True, math.inf) if "left out" not in each]
    assert found
    for each in found:
        assert each["right"], each
        assert each["tokens_per_second"] > 0


@pytest.mark.slow
def test_a_peak_of_memory_is_of_one_training(monkeypatch):
    """What the training before has left is freed first."""
    models = []
    alive = []

    class Watched(trainer.Clock):
        def on_train_start(self, running, model):
            alive.append([each() is not None for each in models])
            models.append(weakref.ref(model))
            super().on_train_start(running, model)

    monkeypatch.setattr(trainer, "Clock", Watched)
    gc.disable()
    try:
        for _ in range(3):
            trainer.time_training(speed.BASE, smoke=True)
    finally:
        gc.enable()
    assert alive == [[], [False], [False, False]]


def test_evaluation_as_published_has_the_lengths_of_the_paper(monkeypatch):
    for name in ("time_reading", "time_generation"):
        monkeypatch.setattr(speed, name, lambda case, *_: {"case": case})
    found = {each["task"]: each for each in speed.measure_inference(False, math.inf)}
    case = found["evaluation as published"]["case"]
    protocol = PROTOCOLS["paper-enwik8-base"]
    assert (case.rows, case.tgt_len) == (protocol.batch_size, protocol.tgt_len)
    used = case.config.mem_len, case.config.clamp_len, case.config.same_length
    assert EvalLengths(*used) == protocol.lengths


def test_steps_by_graphs_have_the_losses_of_plain_steps(monkeypatch):
    case = speed.load_published("paper/wt103_base", smoke=True)
    with imitate_graphs(monkeypatch, cuda_graph) as made:
        steps = [speed.make_step(case), speed.make_step(case, captures=True)]
        losses = []
        for step in steps:
            torch.manual_seed(1)
            losses.append([step().item() for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert [graph.replays for graph in made] == [4, 4]


@pytest.mark.parametrize(("rows", "tgt_len"), [(1, 1), (3, 5)])
def test_tokens_and_segments_read_by_a_graph_have_the_losses_of_plain_ones(
    monkeypatch, rows, tgt_len
):
    case = replace(speed.load_published(speed.BASE, smoke=True), rows=rows, tgt_len=tgt_len)
    losses = []
    with imitate_graphs(monkeypatch, ring, captured) as made:
        for way in speed.READERS:
            torch.manual_seed(1)
            losses.append(speed.time_reading(case, way, 0.01)["first_losses"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert len(made) == 1


@pytest.mark.parametrize("mem_len", [0, 24])
def test_operations_of_a_step_are_those_that_torch_counts(mem_len):
    sizes = {"n_token": 64, "n_layer": 2, "n_head": 4, "d_head": 6, "d_model": 32, "d_inner": 48}
    case = Case("small", sizes, rows=4, tgt_len=40, mem_len=mem_len, trains=True)
    # In float64: torch does not count oneDNN's products of float32.
    net = TransformerXL(replace(case.config, kernel="per_head")).double()
    tokens_BL = torch.randint(64, (case.rows, case.tgt_len))
    _, memory = net.loss(tokens_BL, tokens_BL, None)
    # It does not know products that are written in place.
    in_place = {torch.ops.aten.baddbmm_: lambda _, a, b, **options: 2 * math.prod(a) * b[-1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        net.loss(tokens_BL, tokens_BL, memory)[0].sum().backward()
    expected = pytest.approx(counter.get_total_flops(), rel=0.02)
    assert operations.count_operations(case) == expected


def test_clusters_of_an_adaptive_softmax_count_by_their_shares_of_log_uniform_ids():
    sizes = {"n_token": 1000, "n_layer": 1, "n_head": 2, "d_model": 8, "cutoffs": [10, 100]}
    case = Case("small", sizes, rows=1, tgt_len=3, mem_len=0, trains=True)
    # A third of the ids is in each cluster; the first has two more columns, one for each other.
    columns = 12 + 90 / 3 + 900 / 3
    assert operations.count_head(case) == pytest.approx(2 * 3 * 8 * columns)
