"""Commands name distances that are new to a network, once, and where nobody reads results."""

import json
import shutil

import pytest

from txl_lightning.checkpoints import load_checkpoint

NOTICE = "distances up to {} are read, in training up to 15; new ones can raise the loss: try {}\n"


@pytest.fixture
def find_notices(accepted, run_folder):
    """Return the lines about distances that a command on a run, or its copy, prints on stderr."""

    def run(command, *options, run=run_folder) -> str:
        output = accepted(command, run, *options)
        assert "distances" not in output.out
        return "".join(line for line in output.err.splitlines(True) if "distances" in line)

    return run


@pytest.mark.parametrize(
    ("options", "largest"),
    [
        (["--mem_len=9", "--tgt_len=8"], 16),
        (["--mem_len=100"], 227),
        (["--tgt_len=8", "--ext_len=1"], 16),
        (["--window=17"], 16),
        (["--protocol=single-pass", "--max_tokens=99"], 98),
        # In ten rows, of 30 tokens each.
        (["--protocol=paper-enwik8"], 28),
    ],
)
def test_evaluate_names_larger_distances_than_those_of_training(find_notices, options, largest):
    assert find_notices("evaluate", *options) == NOTICE.format(largest, "--clamp_len 15")


def test_evaluate_names_no_distance_that_is_larger_than_the_text(find_notices, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("a" * 60)
    # Of 60 tokens, the last is only predicted; in two rows, of 30 tokens each.
    for options, largest in ((["--mem_len=5000"], 58), (["--mem_len=500", "--batch_size=2"], 28)):
        found = find_notices("evaluate", "--path", text, *options)
        assert found == NOTICE.format(largest, "--clamp_len 15")
    text.write_text("a" * 16)
    assert find_notices("evaluate", "--path", text, "--mem_len=5000") == ""


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--batch_size=4"],
        ["--mem_len=8", "--tgt_len=8"],
        ["--mem_len=16", "--same_length=mem_len"],
        ["--mem_len=100", "--clamp_len=15"],
    ],
)
def test_evaluate_names_no_distances_by_default_or_where_none_is_new(find_notices, options):
    assert find_notices("evaluate", *options) == ""


def test_the_notice_of_evaluate_precedes_its_table_and_is_no_part_of_its_record(
    accepted, checkpoint, tmp_path
):
    words = ("evaluate", checkpoint, "--mem_len=100", "--out=all.jsonl")
    output = accepted(*words, "--per_document=each.jsonl")
    assert f"{output.err.splitlines()[0]}\n" == NOTICE.format(227, "--clamp_len 15")
    assert json.loads(output.out)["lengths"]["mem_len"] == 100
    assert (tmp_path / "all.jsonl").read_text() == output.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options", "largest"),
    [
        ("validate", ["--model.eval_mem_len=100"], 107),
        ("test", ["--data.tgt_len=9"], 16),
        ("test", ["--data.eval_tgt_len=9"], 16),
        ("test", ["--data.eval_ext_len=1"], 16),
        ("test", ["--model.net.mem_len=9"], 16),
        ("predict", ["--model.eval_mem_len=9"], 16),
    ],
)
def test_a_measurement_names_larger_distances_than_those_of_training(
    find_notices, tmp_path, command, options, largest
):
    options = [*options, f"--trainer.default_root_dir={tmp_path}"]
    expected = NOTICE.format(largest, "--model.eval_clamp_len 15")
    assert find_notices(command, *options) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--model.eval_mem_len=100", "--model.eval_clamp_len=15"],
        ["--model.net.mem_len=100", "--model.net.clamp_len=15"],
        ["--model.eval_mem_len=16", "--model.eval_same_length=mem_len"],
        ["--model.net.mem_len=16", "--model.net.same_length=mem_len"],
    ],
)
def test_a_measurement_names_no_distances_where_none_is_new(find_notices, options):
    assert find_notices("test", *options) == ""


def test_generate_and_score_name_distances_that_a_shorter_memory_does_not_have(
    find_notices, tmp_path
):
    lists = tmp_path / "lists.jsonl"
    lists.write_text('{"candidates": ["to be", "or"]}\n')
    # Of 5 and 12 tokens the last one is not read: 16 are, and then 17.
    generate = ("generate", "to be")
    assert find_notices(*generate, "--max_new_tokens=12", "--mem_len=16") == ""
    assert find_notices(*generate, "--max_new_tokens=13", "--mem_len=15") == ""
    expected = NOTICE.format(16, "a smaller --mem_len")
    assert find_notices(*generate, "--max_new_tokens=13", "--mem_len=16") == expected
    assert find_notices("score", "--candidates", lists, "--mem_len=16") == ""
    lists.write_text(json.dumps({"candidates": ["a" * 16]}))
    assert find_notices("score", "--candidates", lists, "--mem_len=16") == expected
    both = ("--mem_len=8", "--ext_len=8", "--max_new_tokens=13")
    expected = NOTICE.format(16, "a smaller --mem_len or --ext_len")
    assert find_notices("generate", "to be", *both) == expected


def test_tokens_that_are_read_at_once_after_a_memory_have_distances_to_its_oldest_state(
    find_notices, tmp_path
):
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n" * 20 + f"{'b' * 9}\n" * 2)
    # 9 letters and a line end after a memory of 12; a prompt is read in segments of 128.
    generate = ("generate", "--max_new_tokens=1")
    for length, words, largest in (
        (12, ("score", "--lines", lines), 12 + 9),
        (15, (*generate, "--prompt", "a" * 30), 28),
        (12, (*generate, "--prompt", "a" * 300), 12 + 127),
    ):
        expected = NOTICE.format(largest, "a smaller --mem_len")
        assert find_notices(*words, f"--mem_len={length}") == expected
        assert find_notices(*words) == ""


def test_no_distances_are_named_where_those_of_training_are_unknown_or_drawn(
    find_notices, accepted, run_folder, tmp_path
):
    drawn = shutil.copytree(run_folder, tmp_path / "drawn")
    config = drawn / "config.yaml"
    config.write_text(config.read_text().replace("segments: fixed", "segments: varlen"))
    accepted("convert", run_folder, "--out=converted")
    for run in (drawn, tmp_path / "converted"):
        assert load_checkpoint(run).trained_len is None
        assert find_notices("generate", "a", "--mem_len=99", "--max_new_tokens=1", run=run) == ""
    assert load_checkpoint(run_folder).trained_len == 8
