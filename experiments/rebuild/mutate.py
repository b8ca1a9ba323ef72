"""Break the code in one place after another, each in a copy, and see whether the tests notice.

    python experiments/rebuild/mutate.py [--only N ...]

mutations.json names of each mutation the file, the text to find and its replacement, and the fast
tests that may catch it; they must pass before it. The last line is a count, the exit code 1 if one
survived.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout", "300"]
CAUGHT = (1, 2)
"""Exit codes of pytest: a test failed, or could not be imported."""


def copy_tree(target: Path) -> None:
    """Copy what git tracks, and what is new and not ignored."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def run_tests(tree: Path, tests: list[str]) -> tuple[int, str]:
    """Return pytest's exit code, and the first test that failed."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(
        [*PYTEST, *tests], cwd=tree, env=environment, capture_output=True, text=True
    )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else done.stdout[-1000:]


def try_mutation(mutation: dict) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        path = Path(folder, mutation["file"])
        text, count = path.read_text(), path.read_text().count(mutation["find"])
        if count != 1:
            raise SystemExit(f"{mutation['id']}: its text is {count} times in {mutation['file']}")
        path.write_text(text.replace(mutation["find"], mutation["replace"]))
        return run_tests(Path(folder), mutation["tests"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="ids of mutations")
    only = parser.parse_args().only
    mutations = json.loads(Path(__file__).with_name("mutations.json").read_text())["entries"]
    chosen = [each for each in mutations if only is None or each["id"] in only]
    tests = sorted({test for each in chosen for test in each["tests"]})
    code, said = run_tests(ROOT, tests)
    if code:
        raise SystemExit(f"without any mutation: {said}")
    survived = 0
    for each in chosen:
        code, test = try_mutation(each)
        survived += code not in CAUGHT
        verdict = f"caught by {test}" if code in CAUGHT else f"SURVIVED: {each['fault']}"
        print(f"{each['id']:3} {verdict}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return survived > 0


if __name__ == "__main__":
    sys.exit(main())
