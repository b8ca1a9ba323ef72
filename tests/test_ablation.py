"""The ablation compares equal sizes and compute; the text of pairs has the stated distances."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    return lambda module: import_module(f"experiments.{module}")


def test_all_rows_have_equal_parameters_and_compute_equal_numbers_of_tokens(load):
    rows = load("ablation.rows")
    sizes = rows.Sizes()
    for row in (*rows.ROWS, *rows.SHUFFLED):
        options = rows.fit_options(row, sizes, seed=1)
        ours = rows.count_parameters(rows.net_options(rows.ROWS[0], sizes), sizes)
        assert rows.count_parameters(rows.net_options(row, sizes), sizes) == pytest.approx(
            ours, 0.01
        )
        tokens = options["data.tgt_len"] + options["data.ext_len"]
        assert tokens == rows.segment_len(row, sizes)
        computed = tokens * options["trainer.max_steps"]
        assert computed == pytest.approx(sizes.segment * sizes.steps, 0.01)
        assert (options["data.ext_len"] == options["data.tgt_len"]) == row.half
        assert (options["model.net.mem_len"] > 0) == row.recurrence


def test_a_repeated_key_has_the_value_of_that_distance(load):
    pairs = load("memory_length.pairs")
    drawn = pairs.draw_pairs(np.random.default_rng(0), 5000)
    text = "".join(f"{chr(1000 + key)}{chr(97 + value)}" for key, value in drawn)
    distance_N = pairs.find_distances(text)
    assert not distance_N[::2].any()
    repeats = np.flatnonzero(distance_N)
    assert 0.5 < len(repeats) / len(drawn) < 0.8
    assert distance_N.max() <= 2 * pairs.LONGEST
    for place in repeats:
        before = place - distance_N[place]
        assert text[before - 1 : before + 1] == text[place - 1 : place + 1]
        assert text[place - 1] not in text[before : place - 1]


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([3.0, 4.0, 5.0], "holds"),
        ([-3.0, -4.0, -5.0], "does not hold"),
        ([-1.0, 3.0, 0.0], "not told apart"),
        ([3.0], "one seed only"),
    ],
)
def test_a_comparison_is_judged_by_its_spread(load, gains, verdict):
    assert load("ablation.figures").judge(gains) == verdict
