"""Published results beside those of evaluate."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.evaluation.test_protocols import CONFIG_OF, CONFIGS
from txl_lightning.commands.evaluate import find_corpus
from txl_lightning.data import corpora
from txl_lightning.data.store import EvalText
from txl_lightning.data.tokens import TextTokens
from txl_lightning.data.vocab.words import WordOptions, Words
from txl_lightning.evaluation import published
from txl_lightning.evaluation.protocols import PROTOCOLS, ProtocolOptions, get_protocol
from txl_lightning.evaluation.published import RESULTS, Result, compare_published
from txl_lightning.evaluation.scoring import evaluate
from txl_lightning.model.adaptation import Adaptation

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/published.md"
RESULTS_OF_GPU = sorted((REPOSITORY / "experiments/gpu/results").glob("NVIDIA_H200-*.json"))
UNITS = {"bits_per_byte": "{} bits per character", "perplexity": "perplexity {}"}


def make_record(protocol, **values):
    result = RESULTS[protocol]
    record = {"corpus": result.corpus, "vocab_tokens": result.vocab_tokens, "unknown_share": 0.0}
    return record | {"split": "test", "changed": [], "bits_per_word": 9.0} | values


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
        ({"vocab_tokens": 10_001}, {}, "with a vocabulary of 267,735 words, not of 10,001"),
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


@pytest.mark.parametrize(
    ("protocol", "n_token"),
    [("paper-wt103-large", 267_735), ("paper-lm1b-large", 793_471), ("paper-ptb", 10_000)],
)
def test_a_perplexity_is_compared_with_the_published_vocabulary_alone(protocol, n_token):
    record = make_record(protocol, perplexity=9.0)
    protocol = get_protocol(protocol)
    for size in (n_token - 1, n_token, n_token + 1):
        result = compare_published(record | {"vocab_tokens": size}, protocol)
        assert result["reached"] == (True if size == n_token else None)


def test_bits_of_a_text_that_is_unknown_in_part_are_not_compared():
    record = make_record("paper-enwik8-base", bits_per_byte=0.5, unknown_share=0.1)
    result = compare_published(record, get_protocol("paper-enwik8"))
    assert (result["reached"], result["reason"]) == (None, "it has no unknown text")


DOUBLE = {"line_end": "double_eos"}


@pytest.mark.parametrize(
    ("protocol", "options", "n_document", "changed"),
    [
        ("paper-wt103", {}, 1, []),
        ("nvidia-wt103", DOUBLE, 1, ["words.line_end"]),
        ("paper-ptb", {}, 1, ["words.lower_case"]),
        ("paper-ptb", {"lower_case": True}, 1, []),
        ("fairseq-wt103", {}, 3, ["document_unit"]),
        # As its config says: memory continues from one sentence to the next.
        ("paper-lm1b-large", DOUBLE, 1, []),
        ("paper-lm1b-large", DOUBLE, 3, ["document_unit"]),
        ("paper-lm1b-large", {}, 3, ["words.line_end", "document_unit"]),
    ],
)
def test_a_corpus_in_other_tokens_than_the_published_ones_is_not_compared(
    make_net, protocol, options, n_document, changed
):
    protocol = replace(get_protocol(protocol), batch_size=2, mem_len=8, clamp_len=None)
    vocab = Words.from_list("abcdefghi", WordOptions(**options))
    tokens = TextTokens(np.arange(30) % 9, np.arange(n_document) * 10)
    text = EvalText("a", "test", "f", tokens, vocab, 1.0, corpus=RESULTS[protocol.name].corpus)
    record = evaluate(make_net(n_token=vocab.n_token), text, protocol)
    assert [name for name in record["changed"] if name not in ProtocolOptions.__annotations__] == (
        changed
    )
    reason = compare_published(record, protocol)["reason"]
    assert all(name in reason for name in changed)
    other = replace(text, corpus=None)
    assert published.list_changed_reading(other, protocol) == []
    assert published.list_changed_reading(text, get_protocol("segments")) == []


@pytest.mark.parametrize("protocol", RESULTS)
def test_the_config_of_a_published_result_reads_the_text_as_it_is_judged(protocol):
    data = yaml.safe_load(CONFIG_OF[protocol].read_text())["data"]
    corpus = corpora.CORPORA[data["corpus"]]
    has_lines = (data.get("document_unit") or corpus.document_unit) == "lines"
    tokens = TextTokens(np.arange(9) % 3, np.arange(3 if has_lines else 1))
    vocab = Words.from_list("abc", WordOptions(**data.get("words", {})).fill(corpus.words))
    text = EvalText("a", "test", "f", tokens, vocab, 1.0, corpus=data["corpus"])
    assert published.list_changed_reading(text, PROTOCOLS[protocol]) == []


@pytest.mark.parametrize("protocol", ["segments", "paper-text8", "paper-enwik8"])
def test_without_a_published_result_for_the_text_there_is_no_line(protocol):
    record = {"text": "enwik8", "corpus": None, "split": "test", "changed": []}
    assert compare_published(record, get_protocol(protocol)) is None


@pytest.mark.parametrize(
    ("settings", "corpus"),
    [
        ({"corpus": "enwik8"}, "enwik8"),
        ({"corpus": "enwik8", "path": None, "ids": None}, "enwik8"),
        ({"corpus": "enwik8", "path": "enwik8"}, None),
        ({"corpus": "enwik8", "ids": ["a.npy"]}, None),
        ({"corpus": "enwik8", "store": "enwik8"}, None),
        ({}, "python_source"),
    ],
)
def test_a_run_is_of_a_corpus_if_it_names_no_text_otherwise(settings, corpus):
    assert find_corpus(settings) == corpus


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


@pytest.fixture
def evaluate_letters(accepted, run_folder, monkeypatch, text_file):
    """Evaluate a run on the files of a corpus whose published result is a number."""
    monkeypatch.setattr(corpora, "verify_file", lambda *_: None)
    folder = text_file.parent / "here" / "wikitext2"
    folder.mkdir(parents=True)
    for name in ("train", "valid", "test"):
        shutil.copy(text_file, folder / f"wiki.{name}.tokens")

    def run(number: str, *options: str):
        monkeypatch.setitem(RESULTS, "paper-enwik8-base", Result("wikitext2", number, "Table 0"))
        return accepted("evaluate", run_folder, "--protocol=paper-enwik8", *options)

    return run


@pytest.mark.parametrize(("number", "words"), [("99.0", "reached"), ("0.01", "not reached")])
def test_evaluate_ends_with_whether_the_published_result_is_reached(
    evaluate_letters, number, words
):
    output = evaluate_letters(number, "--corpus=wikitext2", "--data_dir=here")
    line = f"published: {number} bits per byte (Table 0): {words}"
    assert output.err.splitlines()[-1] == line
    assert json.loads(output.out)["published"]["reached"] == (words == "reached")


@pytest.mark.parametrize("options", [["--path=wikitext2"], []])
def test_a_text_is_no_corpus_by_the_name_of_its_file(evaluate_letters, text_file, options):
    shutil.copy(text_file, text_file.with_name("wikitext2"))
    record = json.loads(evaluate_letters("99.0", *options).out)
    assert (record["corpus"], record["published"]) == (None, None)


COMPILED = ("compile", "compile layers")
MEASURED = {
    # Part of the results, its rows, and updates and tokens of an update of the config.
    "paper/enwik8_base, text8_base": ("trainer", COMPILED, 400_000 * 22 * 512),
    "paper/wt103_base": ("trainer", COMPILED, 200_000 * 60 * 150),
    "paper/enwik8_large, text8_large": ("speed", ("sdpa", None), 400_000 * 64 * 768),
    "nvidia/wt103_base": ("speed", ("sdpa", None), 40_000 * 256 * 192),
}


def list_speeds(config, part, kinds):
    """Return the tokens per second that were measured on a GPU."""
    results = [json.loads(path.read_text())["parts"] for path in RESULTS_OF_GPU]
    found = [each for parts in results for each in parts.get(part, {}).get("found", ())]
    kind = "way" if part == "trainer" else "kernel"
    rows = [row for row in found if row["config"] == config and row.get(kind) in kinds]
    return [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]


@pytest.mark.parametrize("name", MEASURED)
def test_hours_of_the_page_follow_from_measured_speeds(name):
    part, kinds, n_token = MEASURED[name]
    speeds = list_speeds(name.partition(",")[0], part, kinds)
    least, most = (n_token / choose(speeds) / 3600 for choose in (max, min))
    digits = 0 if least > 10 else 1
    row = f"| {name} | {n_token / 1e9:.1f} billion | "
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith(row)]
    assert f"| {least:.{digits}f} to {most:.{digits}f}" in row
