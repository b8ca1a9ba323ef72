"""Every mutation of mutations.json applies to the code as it is, and names its tests."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("mutations.json")
SCRIPT = LISTED.with_name("mutate.py")
MUTATIONS = json.loads(LISTED.read_text())["entries"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: str(each["id"]))
def test_a_mutations_text_occurs_once_and_its_replacement_compiles(mutation):
    source = (REPOSITORY / mutation["file"]).read_text()
    assert source.count(mutation["find"]) == 1
    parsers = {".py": ast.parse, ".yaml": yaml.safe_load}
    parse = parsers.get(Path(mutation["file"]).suffix, str)
    assert parse(source.replace(mutation["find"], mutation["replace"]))


def test_the_ids_are_unique_and_every_test_is_there():
    assert len({each["id"] for each in MUTATIONS}) == len(MUTATIONS)
    tests = {test for each in MUTATIONS for test in each["tests"]}
    for path, _, name in (test.partition("::") for test in tests):
        assert f"def {name}(" in (REPOSITORY / path).read_text() or not name, f"{path}::{name}"


@pytest.mark.slow
def test_a_mutation_is_caught_in_a_copy_and_not_tried_again(tmp_path):
    chosen = next(each for each in MUTATIONS if "Table 9" in each["fault"])
    path = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), "--only", str(chosen["id"]), "--out", str(path)]
    before = (REPOSITORY / chosen["file"]).read_text()
    shown = [subprocess.run(command, capture_output=True, text=True).stdout for _ in range(2)]
    outcome = json.loads(path.read_text())["outcomes"][str(chosen["id"])]
    assert outcome["outcome"] == "caught", shown
    assert outcome["by"].startswith(chosen["tests"][0])
    assert [text.count("\n") for text in shown] == [2, 1]
    assert (REPOSITORY / chosen["file"]).read_text() == before
