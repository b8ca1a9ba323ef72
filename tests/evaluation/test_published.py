"""Published results beside those of evaluate."""

import json
import re

import pytest

from tests.evaluation.test_protocols import CONFIG_OF, CONFIGS
from txl_lightning.evaluation import published
from txl_lightning.evaluation.protocols import PROTOCOLS, get_protocol
from txl_lightning.evaluation.published import RESULTS, Result, compare_published
from txl_lightning.model.adaptation import Adaptation

UNITS = {"bits_per_byte": "{} bits per character", "perplexity": "perplexity {}"}


def make_record(protocol, **values):
    record = {"text": RESULTS[protocol].corpus, "split": "test", "changed": []}
    return record | {"bits_per_word": 9.0} | values


@pytest.mark.parametrize(
    ("protocol", "values", "reached"),
    [
        ("paper-enwik8", {"bits_per_byte": 1.0649}, True),
        ("paper-enwik8", {"bits_per_byte": 1.0651}, False),
        ("paper-wt103", {"perplexity": 24.04}, True),
        ("paper-wt103", {"perplexity": 24.06}, False),
        ("fairseq-wt103", {"perplexity": 23.7049}, True),
        ("fairseq-wt103", {"perplexity": 23.7051}, False),
        ("paper-ptb", {"perplexity": 1e300}, False),
    ],
)
def test_a_result_is_reached_if_it_is_not_larger_in_the_published_digits(protocol, values, reached):
    protocol = get_protocol(protocol)
    result = compare_published(make_record(protocol.name, **values), protocol)
    line = published.format_published(result)
    assert (result["reached"], result["reason"]) == (reached, None)
    assert result["number"] in line
    assert line.endswith("): reached" if reached else "): not reached")


@pytest.mark.parametrize(
    ("values", "adaptation", "reason"),
    [
        ({"split": "val"}, {}, "it is of the test text, not of split val"),
        ({"changed": ["mem_len", "max_tokens"]}, {}, "mem_len, max_tokens differ"),
        ({}, {"rate": 0.1}, "without adaptation"),
        ({"bits_per_word": None}, {}, "a perplexity of words"),
    ],
)
def test_a_result_of_another_measurement_is_not_compared(values, adaptation, reason):
    protocol = get_protocol("paper-wt103")
    record = make_record(protocol.name, perplexity=9.0) | values
    record = {name: value for name, value in record.items() if value is not None}
    object.__setattr__(protocol, "adaptation", Adaptation(**adaptation))
    result = compare_published(record, protocol)
    assert result["reached"] is None
    assert reason in result["reason"]
    assert "not compared, because " in published.format_published(result)


@pytest.mark.parametrize("protocol", ["segments", "paper-text8", "paper-enwik8"])
def test_without_a_published_result_for_the_text_there_is_no_line(protocol):
    record = {"text": "mine.txt", "split": "test", "changed": [], "bits_per_byte": 1.0}
    assert compare_published(record, get_protocol(protocol)) is None


def test_the_published_results_are_those_of_the_list_of_configs():
    rows = re.findall(r"^\| (\S+) \|.*?\| (.*?) \|", (CONFIGS / "README.md").read_text(), re.M)
    listed = dict(rows)
    for protocol, config in CONFIG_OF.items():
        name = config.relative_to(CONFIGS).with_suffix("").as_posix()
        number = listed[name]
        if result := RESULTS.get(protocol):
            unit = published.METRICS[PROTOCOLS[protocol].unit]
            assert number == UNITS[unit].format(result.number)
        else:
            assert number == "none"


@pytest.mark.parametrize(("number", "words"), [("99.0", "reached"), ("0.01", "not reached")])
def test_evaluate_ends_with_whether_the_published_result_is_reached(
    accepted, run_folder, monkeypatch, number, words
):
    result = Result(str(run_folder.parent / "letters.txt"), number, "Table 0")
    monkeypatch.setitem(RESULTS, "paper-enwik8-base", result)
    output = accepted("evaluate", run_folder, "--protocol=paper-enwik8")
    line = f"published: {number} bits per byte (Table 0): {words}"
    assert output.err.splitlines()[-1] == line
    assert json.loads(output.out)["published"]["reached"] == (words == "reached")
