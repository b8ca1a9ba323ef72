"""Experiments measure what their claims say, and claims say no more than their numbers."""

import json
import math
import re
import subprocess
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest
import torch

from experiments import common, pages, results
from experiments.copying.rows import Sizes
from experiments.longer_memory import run as longer_memory
from experiments.results import AGAIN
from experiments.state_bytes import recall
from experiments.state_bytes import run as state_bytes
from experiments.stop_gradient import run as stop_gradient
from txl_lightning.analysis import contrasts
from txl_lightning.analysis.contrasts import Contrast

REPOSITORY = Path(__file__).parents[1]
EARLIER = (pages.FOLDER / "earlier.md").read_text()
# Percentage points of Student's t, two-sided 5 %, from printed tables (Fisher and Yates).
POINTS = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}
POINTS |= {6: 2.447, 9: 2.262, 10: 2.228, 30: 2.042}


def test_the_tail_of_t_is_that_of_printed_tables_and_of_the_integral():
    for degrees, point in POINTS.items():
        assert contrasts.t_tail(point, degrees) == pytest.approx(0.025, abs=2e-5)
        assert contrasts.t_tail(-point, degrees) == pytest.approx(0.975, abs=2e-5)
    # The density of 7 degrees, summed from 1 to 400 in small steps.
    x = torch.linspace(1, 400, 4_000_001, dtype=torch.float64)
    density = (1 + x**2 / 7) ** -4 * math.gamma(4) / math.gamma(3.5) / math.sqrt(7 * math.pi)
    assert contrasts.t_tail(1, 7) == pytest.approx(torch.trapezoid(density, x).item(), abs=1e-9)


def make_contrast(effects, **changes):
    return Contrast("", effects, "nats", margin=0.5, **changes)


def test_an_interval_of_three_seeds_is_that_of_a_printed_table_of_t():
    # 4 ± 4.3027 * 4.3589 / sqrt(3) at 95 %, and 4 ± 1.8856 * 4.3589 / sqrt(3) at 80 %.
    contrast = make_contrast([1, 2, 9])
    assert contrasts.find_interval(contrast, 0.95) == pytest.approx((-6.828, 14.828), abs=1e-3)
    assert contrasts.find_interval(contrast, 0.8) == pytest.approx((-0.745, 8.745), abs=1e-3)
    assert make_contrast([1]).interval is None


@pytest.mark.parametrize(
    ("effects", "result"),
    [
        ([3, 4, 5], "clear"),
        ([-3, -4, -5], "clear, against"),
        # The interval at 95 % contains 0, that at 80 % does not.
        ([0.5, 2, 4], "likely"),
        ([-0.5, -2, -4], "likely, against"),
        # One of five disagrees.
        ([-0.1, 2, 3, 3, 4], "likely"),
        # Two of ten disagree, and 0 is outside of both intervals.
        ([-1, -1, *[4] * 8], "likely"),
        ([-1, -1, -1, *[6] * 7], "unclear"),
        ([-0.1, 2, 4], "unclear"),
        ([0.1, -0.1, 0.2], "none"),
        # Different from 0, and not from none.
        ([0.1, 0.1, 0.11], "none"),
        ([3, 4], "unclear"),
        ([3], "unclear"),
    ],
)
def test_a_result_follows_from_the_interval_and_the_seeds(effects, result):
    assert contrasts.judge_contrast(make_contrast(effects)) == result


def test_documents_that_differ_widen_the_interval_and_equal_ones_do_not():
    alike = [[3.0] * 6, [4.0] * 6, [5.0] * 6]
    apart = [[value - 9, value + 9] * 3 for value in (3.0, 4.0, 5.0)]
    plain = make_contrast([3, 4, 5]).interval
    assert make_contrast([3, 4, 5], documents=alike).interval == pytest.approx(plain)
    low, high = make_contrast([3, 4, 5], documents=apart).interval
    # Six documents 9 from their mean: a standard error of 9 / sqrt(6) = 3.7.
    assert low == pytest.approx(4 - 1.96 * 3.7, abs=1)
    assert high == pytest.approx(4 + 1.96 * 3.7, abs=1)
    assert contrasts.judge_contrast(make_contrast([3, 4, 5], documents=apart)) == "unclear"


def test_effects_are_shown_with_sign_unit_and_the_seeds_above_0():
    contrast = make_contrast([0.2, -0.1, 0.2])
    assert contrast.format_effect() == "+0.100 nats"
    assert contrast.format_interval() == "-0.330 to +0.530"
    assert contrast.count_seeds() == "2 of 3"
    assert Contrast("", [10, 12], "% less", 1).format_effect() == "+11.0 % less"


def test_primary_contrasts_are_few_and_each_is_one_of_its_folder():
    results = pages.load_results()
    assert len(pages.PRIMARY) <= 25
    counts = Counter(each.folder for each in pages.PRIMARY)
    # Three were planned for stop_gradient; a result against memory must not be left out.
    assert counts.pop("stop_gradient") <= 4
    assert max(counts.values()) <= 3
    assert all(each.why for each in pages.PRIMARY)
    for each in pages.PRIMARY:
        found = pages.import_figures(each.folder).list_contrasts(results.get(each.folder, {}))
        assert each.contrast in {contrast.name for contrast in found}, each


def test_a_result_stands_beside_every_measured_primary_contrast_and_no_other():
    for name, records in pages.load_results().items():
        primary = {each.contrast for each in pages.PRIMARY if each.folder == name}
        rows = pages.list_compared(name, records)
        shown = r"clear|likely|unclear|none|(clear|likely), against"
        for row in rows:
            assert re.fullmatch(shown if row[0] in primary else "", row[-1]), row


def test_a_contrast_without_results_is_not_measured_in_the_index():
    rows = pages.format_index({}).splitlines()[2:]
    assert len(rows) == len(pages.PRIMARY)
    assert all("| not measured yet |" in row for row in rows)
    fronts = pages.format_front({}).splitlines()[2:]
    assert len(fronts) == sum(each.front for each in pages.PRIMARY)


NOT_MEASURED = {
    # Guessing, minutes of the setting, what others have published, and a ratio of parameters.
    *("12.5", "2.5", "7.8", "2.9"),
}


def test_numbers_of_an_answer_are_in_the_tables_of_its_folder():
    for name in pages.load_results():
        answer = (pages.FOLDER / name / "README.md").read_text().split("\n\n")[1]
        tables = (pages.FOLDER / name / "table.md").read_text()
        numbers = {*re.findall(r"\d+\.\d+", answer)} - NOT_MEASURED
        assert [number for number in numbers if number not in tables] == [], name


RECORDS = {
    f"{path.parent.name}/{name}": record
    for path in sorted((REPOSITORY / "experiments").glob("*/results.json"))
    for name, record in json.loads(path.read_text())["records"].items()
}
VARY = {"weights", "weights and data", "weights and words"} | {
    "nothing: processes repeat one computation"
}


def test_a_record_names_its_text_and_what_its_seeds_vary():
    for name, record in RECORDS.items():
        assert record["origin"]["seeds_vary"] in VARY, name
        # Networks with random weights, and steps that are only timed, read no text.
        if not (name.startswith("first_computation/") or record.get("kind") == "pace"):
            assert re.fullmatch(r"[0-9a-f]{16}|[0-9a-f]{64}", record["text"]), name


def call_git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True)


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not in a repository")
def test_results_name_commits_that_are_in_the_repository():
    if call_git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        pytest.skip("a shallow clone lacks them")
    paths = [*(REPOSITORY / "experiments").glob("*/results.json")]
    paths += (REPOSITORY / "experiments" / "speed" / "results").glob("*.json")
    paths += [REPOSITORY / "tests" / name for name in ("golden/training_curve.json",)]
    paths += [REPOSITORY / "tests" / "training" / "recipes.json"]
    for path in paths:
        commits = set(re.findall(r'"commit": "([^"]*)"', path.read_text()))
        assert commits, path
        for commit in commits:
            found = call_git("merge-base", "--is-ancestor", commit, "HEAD")
            assert found.returncode == 0, (path, commit)


def test_holm_keeps_the_smallest_p_values_that_pass_in_turn():
    # p of about 0.0005, 0.02 and 0.03: with three rows 0.05 / 3 and 0.05 / 2 are asked for.
    clear = [4, 4.1, 4.2]
    second = [3, 4, 5]
    third = [3, 4, 5.4]
    both = [make_contrast(second), make_contrast(clear), make_contrast(third)]
    assert contrasts.list_kept(both) == [True, True, True]
    # Of four rows the second is not kept, so that no later one is.
    fourth = make_contrast([3, 4, 5.1])
    assert contrasts.list_kept([fourth, *both]) == [False, False, True, False]
    assert contrasts.list_kept([]) == []


def test_a_contrast_follows_from_its_own_records_alone():
    results = pages.load_results()
    measured = [(each, found) for each, found in pages.list_primary(results) if found]
    for question, contrast in measured:
        names = {id(each) for each in question.select(results[question.folder])}
        own = {n: each for n, each in results[question.folder].items() if id(each) in names}
        found = {each.name: each for each in pages.list_contrasts(question.folder, own)}
        assert found[question.contrast].effects == contrast.effects, question
        assert not any(name.endswith(AGAIN) for name in own)
        # That of the seconds of a step has no seed.
        seeds = {each["seed"] for each in own.values() if "seed" in each}
        # Until all are measured, one side may have more seeds.
        assert len(seeds) >= len(contrast.effects), question


def test_the_study_answers_each_question_in_a_sentence_a_picture_and_a_table():
    sections = re.split(r"^## \d\. ", pages.STUDY_PAGE.read_text(), flags=re.M)[1:]
    assert len(sections) == len(pages.STUDY)
    for name, section in zip(pages.STUDY, sections, strict=True):
        title, answer, picture, table, change, *_ = section.split("\n\n")
        assert f"]({name}/README.md)" in title
        assert len(re.findall(r"\.(?:\s|$)", answer)) == 1, answer
        assert picture.startswith("![")
        assert f"]({name}/" in picture
        assert table.startswith(pages.BEGIN.format(name))
        assert change.startswith("*What would change it:* ")


def test_kept_keys_give_the_bits_of_a_recomputed_window_as_the_page_says():
    [nats] = re.findall(
        r"a window needs ([\d.]+) nats of a byte in both ways", " ".join(EARLIER.split())
    )
    again = (pages.FOLDER / "fragmentation" / "table.md").read_text().split("measured again")[1]
    for name in ("the same by a sliding window", "the same by a sliding window, from kept keys"):
        assert f"| {name} | {nats} (1) |" in again


def plan_options(name, record, monkeypatch):
    """Return the options with which a network of the study would be trained now; None: no network.

    Texts are not looked for.
    """
    folder = name.split("/")[0]
    settings = record.get("ran_with", {})
    where = {"out": pages.FOLDER / folder / "results.json", "runs": Path("runs")}
    args = Namespace(**settings, **where, settings=settings, again=False)
    monkeypatch.setattr(common, "fit", lambda folder, options: options)
    monkeypatch.setattr(stop_gradient, "choose_text", lambda text: {})
    monkeypatch.setattr(recall, "find_texts", lambda args, seed, sizes: [])
    kind = record.get("kind", "").removesuffix(AGAIN)
    seed = record.get("seed")
    match folder:
        case "stop_gradient" if "seed" in record:
            return stop_gradient.train(args, *kind.split(", ", 1), seed, record["rate"])
        case "state_bytes" if kind.startswith(recall.PAIRS):
            return recall.train(args, kind.removeprefix(recall.PAIRS), seed, record["rate"])
        case "state_bytes" if "optimizer" in record:
            net = record.get("net", kind)
            return state_bytes.train(args, net, record["optimizer"], record["rate"], seed)
        case "longer_memory":
            return longer_memory.train(args, kind, seed, Sizes())
    return None


def test_records_of_the_study_have_the_options_of_their_plan(monkeypatch):
    counts = Counter()
    for name, record in RECORDS.items():
        if planned := plan_options(name, record, monkeypatch):
            found = {key: value for key, value in record["options"].items() if key in planned}
            of_text = {key for key in record["options"] if key.startswith("data.")}
            assert record["options"].keys() - of_text <= planned.keys(), name
            planned.pop("data.path", None)
            found.pop("data.path", None)
            assert found == json.loads(json.dumps(planned)), name
            counts[name.split("/")[0]] += 1
    assert counts.keys() == {"stop_gradient", "state_bytes", "longer_memory"}
    assert min(counts.values()) >= 9


def test_networks_of_a_primary_contrast_were_trained_in_one_precision():
    measured = pages.load_results()
    for question in pages.PRIMARY:
        found = set()
        for record in question.select(measured.get(question.folder, {})):
            trained = record.get("options", {}).get("trainer.precision")
            found |= {trained or record.get("ran_with", {}).get("precision")} - {None}
        assert len(found) <= 1, (question.contrast, found)


def test_records_of_one_seed_between_which_nothing_chooses_are_refused():
    records = {f"xl {n}": {"kind": "xl", "seed": 1, "minutes": n, "nats": n} for n in (6, 30)}
    assert results.collect(records, "nats", kind="xl", minutes=30) == {1: 30}
    with pytest.raises(AssertionError, match="several records of one seed"):
        results.collect(records, "nats", kind="xl")
