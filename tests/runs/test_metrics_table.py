"""Metrics loaded from metrics.csv equal the logged ones."""

from txl_lightning.runs import metrics_table
from txl_lightning.runs.metrics_table import RunMetrics, format_columns, read_metrics
from txl_lightning.tables import align_columns


def test_curves_and_validations_of_a_run_are_over_its_tokens(run_folder):
    metrics = read_metrics(run_folder)
    assert [tokens for tokens, _ in metrics.curve("train/nats")] == [32, 64, 96, 128]
    assert metrics.curve("train/nats")[-1][1] == metrics.last("train/nats") > 0
    validations = [(row["step"], row["tokens_seen"]) for row in metrics.validations]
    assert validations == [(2, 64), (4, 128)]


def test_a_folder_without_metrics_has_empty_curves(tmp_path):
    metrics = read_metrics(tmp_path)
    assert (metrics.rows, metrics.validations, metrics.best, metrics.bits) == ([], [], None, "nats")
    assert metrics.last("train/nothing") == 0


def test_repeated_steps_count_once_with_their_last_values_and_a_truncated_line_not(tmp_path):
    text = "step,train/lr,val/nats\n0,1.0,\n1,2.0,\n1,,9.0\n1,3.0,\n1,,8.0\n2,4.0,\n3,5"
    (tmp_path / "metrics.csv").write_text(text)
    first, second, third = read_metrics(tmp_path).rows
    assert first == {"step": 1, "train/lr": 1.0}
    assert second == {"step": 2, "train/lr": 3.0, "val/nats": 8.0}
    assert third == {"step": 3, "train/lr": 4.0}


def test_bits_are_per_byte_where_known():
    assert RunMetrics([{"val/bits_per_word": 1, "val/bits_per_byte": 1}]).bits == "bits_per_byte"
    assert RunMetrics([{"train/nats": 1, "train/bits_per_token": 1}]).bits == "bits_per_token"


def test_the_best_validation_has_the_least_finite_nats():
    values = [float("nan"), 3.0, 2.0, 2.5]
    rows = [{"step": n, "val/nats": nats, "val/loss": nats} for n, nats in enumerate(values)]
    assert RunMetrics(rows).best == {"step": 2, "nats": 2.0}


def test_validations_are_of_the_first_text_with_nats_before_other_readings():
    row = {"step": 7, "val/bits": 1.0, "val/1/nats": 5.0, "val/nats": 2.0, "val/tokens_seen": 8.0}
    [validation] = RunMetrics([{"step": 1, "train/lr": 1.0}, row]).validations
    assert list(validation.items()) == [("step", 7), ("tokens_seen", 8), ("nats", 2), ("bits", 1)]


def test_a_standard_error_is_shown_after_its_value():
    rows = [{"gain": 0.5, "gain_error": 0.0625, "step_error": 1.0}, {"gain": 2.0}]
    assert format_columns(rows)[1:] == [["0.500 ± 0.062", "1.000"], ["2.000", ""]]


def test_settings_that_differ_are_written_as_in_yaml():
    settings = [{"lr": 1e-3, "name": "a", "path": None}, {"lr": 1e-3, "name": "b", "more": [1]}]
    expected = {"name": ["a", "b"], "more": ["", "[1]"]}
    assert metrics_table.find_differences(settings) == expected


def test_to_lack_a_setting_is_no_difference_from_null_and_is_not_shown_as_null():
    settings = [{"norm": None, "len": None}, {"len": None}, {"len": 8}]
    assert metrics_table.find_differences(settings) == {"len": ["null", "null", "8"]}
    assert metrics_table.find_differences([{"len": 8}, {}]) == {"len": ["8", ""]}


def test_tables_have_short_numbers_in_aligned_columns():
    values = (1234, -1e-4, -0.25, 12345.6, 1e12)
    _, *rows = format_columns([{"n": value} for value in values])
    assert rows == [["1,234"], ["0.000"], ["-0.250"], ["12,346"], ["1e+12"]]
    lines = align_columns([("a", "1", "x"), ("long", "1,000", "")]).splitlines()
    assert lines == ["a         1  x", "long  1,000"]
