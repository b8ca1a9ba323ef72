"""Collected tests are the same in every process, as workers that run them side by side require."""

import os
import subprocess
import sys
import time

import pytest

COLLECT = """
import re, sys, pytest

def describe(value):
    # The order of a set depends on the hash seed, and changes no test.
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    elif isinstance(value, dict):
        value = {key: describe(part) for key, part in value.items()}
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

class ListTests:
    def pytest_collection_finish(self, session):
        for item in session.items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            print("TEST", item.nodeid, describe(parameters))

sys.exit(pytest.main(["--collect-only", "-qq", "-m", ""], [ListTests()]))
"""


def collect_tests(repository, hash_seed: int, folder) -> list[str]:
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "TMPDIR": str(folder)}
    words = [sys.executable, "-c", COLLECT]
    done = subprocess.run(words, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line.startswith("TEST ")]


@pytest.mark.slow
def test_tests_and_their_parameters_do_not_depend_on_time_chance_address_or_folder(
    repository, tmp_path
):
    first = collect_tests(repository, 1, tmp_path)
    time.sleep(1.1)
    (tmp_path / "other").mkdir()
    assert collect_tests(repository, 2, tmp_path / "other") == first
    assert len(first) > 2000
