"""Candidates for attention on a GPU: what is known of them on a CPU."""

import math

import pytest
import torch

from experiments.gpu import attention, flex
from experiments.gpu.correctness import Case, compare, compute
from txl_lightning.model.kernels import reference

CASES = [Case(L, M, "rvub", 16) for L, M in ((1, 0), (7, 5), (65, 130))]
CASES += [Case(65, 130, terms, 8, "mem_len") for terms in ("rvu", "ub", "")]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_flex_attention_equals_the_reference_forward(case):
    # It has no gradient on a CPU.
    inputs = case.make_inputs(torch.float64)
    mask_BLS = case.make_mask()
    expected, found = (
        {"out": compute(each.attend, inputs, mask_BLS)} for each in (reference, flex)
    )
    assert compare(found, expected)["out"] < 1e-10


def test_attention_of_each_network_is_timed_on_a_cpu_by_sdpa_alone():
    found = list(attention.measure_attention(True, math.inf))
    assert {each["config"] for each in found} == {*attention.NETWORKS}
    for each in found:
        if each["attention"] == "sdpa, compiled":
            assert each["right"], each
            assert each["seconds_forward"] > 0
        else:
            assert each.items() >= attention.NEEDS_GPU.items()
    of_sdpa, of_flash = attention.measure_network(True, math.inf)
    assert of_sdpa["right"]
    assert of_flash.items() >= attention.NEEDS_GPU.items()
    assert list(attention.compare_flash(True, math.inf)) == [
        {"kernel": "flash"} | attention.NEEDS_GPU
    ]


@pytest.mark.parametrize(("seconds", "is_kept"), [(0.64, True), (0.66, False)])
def test_rule_keeps_a_kernel_that_takes_at_most_its_share_of_the_time_of_sdpa(seconds, is_kept):
    [found] = attention.apply_rule({"sdpa, compiled": 1.0, "flash": seconds})
    assert found["fulfilled"] is is_kept
    assert found["share of the time of compiled sdpa"] == seconds


def test_rule_says_nothing_without_a_time_of_sdpa():
    assert not list(attention.apply_rule({"flash": 1.0}))
