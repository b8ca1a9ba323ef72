"""Experiments measure what their claims say, and claims say no more than their numbers."""

import json
import math
import re
import subprocess
from pathlib import Path

import pytest
import torch

from experiments import claims, verdicts
from experiments.results import Claim

REPOSITORY = Path(__file__).parents[1]
# Percentage points of Student's t, two-sided 5 %, from printed tables (Fisher and Yates).
POINTS = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}
POINTS |= {6: 2.447, 9: 2.262, 10: 2.228, 30: 2.042}


def test_the_tail_of_t_is_that_of_printed_tables_and_of_the_integral():
    for degrees, point in POINTS.items():
        assert verdicts.t_tail(point, degrees) == pytest.approx(0.025, abs=2e-5)
        assert verdicts.t_tail(-point, degrees) == pytest.approx(0.975, abs=2e-5)
    # The density of 7 degrees, summed from 1 to 400 in small steps.
    x = torch.linspace(1, 400, 4_000_001, dtype=torch.float64)
    density = (1 + x**2 / 7) ** -4 * math.gamma(4) / math.gamma(3.5) / math.sqrt(7 * math.pi)
    assert verdicts.t_tail(1, 7) == pytest.approx(torch.trapezoid(density, x).item(), abs=1e-9)


def test_p_values_of_three_gains_are_those_computed_by_hand():
    # Mean 4, standard error 1 / sqrt(3): t = 6.9282; with 2 degrees P(T > t) is
    # (1 - t / sqrt(2 + t^2)) / 2 = (1 - 6.9282 / 7.0711) / 2.
    assert verdicts.test_difference([3, 4, 5]) == pytest.approx(0.0202041, abs=1e-6)
    # Of ± 6: t = (6 - 4) sqrt(3) = 3.4641 on the nearer side, P = (1 - 3.4641 / 3.7417) / 2.
    assert verdicts.test_equivalence([3, 4, 5], 6) == pytest.approx(0.0370899, abs=1e-6)
    assert verdicts.test_difference([2, 2, 2]) == 0
    assert verdicts.test_difference([0, 0, 0]) == 1
    assert verdicts.test_difference([3, 4]) is None


def test_p_values_are_multiplied_by_the_number_of_tests_that_are_left():
    # 0.01 * 3, then 0.02 * 2, then 0.03: less than that before it, so equal to it.
    adjusted = verdicts.correct_by_holm([0.03, None, 0.01, 0.02])
    assert adjusted == pytest.approx([0.04, None, 0.03, 0.04])
    assert verdicts.correct_by_holm([0.9, 0.8]) == [1, 1]


@pytest.mark.parametrize(
    ("gains", "changes", "word"),
    [
        ([3, 4, 5], {}, "holds"),
        ([-3, -4, -5], {}, "does not hold"),
        ([-1, 3, 0], {}, "not decided"),
        # Two standard errors, but p 0.18.
        ([0, 2, 4], {}, "not decided"),
        ([0.1, -0.1, 0.05], {}, "no difference"),
        ([3], {}, "one seed"),
        ([3, 4], {}, "two seeds"),
        ([3, 4, 5], {"doubt": "another rate"}, "not decided"),
        ([0, 0, 0], {"is_same": True}, "holds"),
        ([3, 4, 5], {"is_same": True}, "does not hold"),
    ],
)
def test_a_claim_is_judged_by_its_gains(gains, changes, word):
    [verdict] = verdicts.judge([make_claim(gains, **changes)])
    assert verdict.word == word
    assert changes.get("doubt", "") in str(verdict)
    assert ("95 % interval" in str(verdict)) == (word == "not decided")


def make_claim(gains, **changes):
    texts = dict.fromkeys(("claim", "source", "theirs", "ours", "scale"), "")
    return Claim(**texts, gains=gains, margin=1.0, **changes)


def test_an_undecided_claim_has_the_interval_of_its_mean():
    [verdict] = verdicts.judge([make_claim([1, 2, 9])])
    # 4 ± 4.3027 * 4.3589 / sqrt(3), by a printed table of t.
    assert str(verdict).endswith("(95 % interval -6.83 to 14.8)")
    [verdict] = verdicts.judge([make_claim([3, 4, 5])])
    assert verdict.interval is None


def test_a_gain_that_holds_alone_is_not_decided_among_many():
    rows = [make_claim(gains) for gains in ([3, 4, 5], [-9, 9, 1], [1, -9, 9])]
    words = [verdict.word for verdict in verdicts.judge(rows)]
    assert words == ["not decided", "not decided", "not decided"]
    assert verdicts.judge(rows[:1])[0].word == "holds"


def test_the_front_page_has_the_worst_row_of_each_experiment_and_counts_all():
    rows = claims.list_claims(claims.load_results())
    text = claims.FRONT_PAGE.read_text().split(claims.BEGIN)[1].split(claims.END)[0]
    every = [row for found in rows.values() for row in found]
    holding = sum(verdict.word == "holds" for _, verdict in every)
    assert f"{len(every)} claims: {holding} hold, " in text
    for found in rows.values():
        shown = [row for row in found if f"| {row[0].claim} |" in text]
        assert len(shown) == 1
        assert shown[0][1].rank == min(verdict.rank for _, verdict in found)


RECORDS = {
    f"{path.parent.name}/{name}": record
    for path in sorted((REPOSITORY / "experiments").glob("*/results.json"))
    for name, record in json.loads(path.read_text())["records"].items()
}
VARY = {"weights", "weights and data", "nothing: they are repetitions"}
VARY |= {"nothing: processes repeat one computation"}


def test_a_record_names_its_text_and_what_its_seeds_vary():
    for name, record in RECORDS.items():
        assert record["origin"]["seeds_vary"] in VARY, name
        # Networks with random weights, and steps that are only timed, read no text.
        if not name.startswith(("sliding_window/", "first_computation/")) | name.endswith("/pace"):
            assert re.fullmatch(r"[0-9a-f]{16}|[0-9a-f]{64}", record["text"]), name


def call_git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True)


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not in a repository")
def test_results_name_commits_that_are_in_the_repository():
    if call_git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        pytest.skip("a shallow clone lacks them")
    paths = [*(REPOSITORY / "experiments").glob("*/results.json")]
    paths += (REPOSITORY / "experiments" / "speed" / "results").glob("*.json")
    paths.append(REPOSITORY / "experiments" / "reproduction" / "golden_curve.json")
    for path in paths:
        commits = set(re.findall(r'"commit": "([^"]*)"', path.read_text()))
        assert commits, path
        for commit in commits:
            found = call_git("merge-base", "--is-ancestor", commit, "HEAD")
            assert found.returncode == 0, (path, commit)
