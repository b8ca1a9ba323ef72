"""Break the code in one place after another, and record which of these mutations tests detect.

    python tests/mutations/mutate.py [--only ID ...] [--limit SECONDS] [--out FILE]

mutations.json has for each mutation a file, a text that is in it once, its replacement, and the
tests that must fail. They run in copies of HEAD, where they must pass without a mutation. Each
outcome is written to outcomes.json at once: a stopped run continues, another commit starts anew.
The exit code is 1 if a mutation is not caught.
"""

import argparse
import importlib
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PYTEST = ["-q", "-x", "-m", "not gpu and not reference", "--hypothesis-seed=0"]
OUTCOMES = {0: "survived", 1: "caught", 2: "caught", None: "time limit"}
"""By pytest's exit code: 1 if a test failed, 2 if it could not be imported."""
SLOW_IMPORTS = ("torch", "lightning.pytorch", "jsonargparse", "matplotlib")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, nargs="+", metavar="ID", help="ids of mutations")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each (300)")
    parser.add_argument("--out", type=Path, default=HERE / "outcomes.json", help="outcomes.json")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_head(Path(folder))
        listed = json.loads((tree / HERE.relative_to(ROOT) / "mutations.json").read_text())
        entries = listed["entries"]
        chosen = [each for each in entries if args.only is None or each["id"] in args.only]
        outcomes = try_mutations(tree, chosen, args.limit, args.out)
    missed = [each for each in chosen if outcomes[str(each["id"])]["outcome"] != "caught"]
    for each in missed:
        print(f"{each['id']}: {outcomes[str(each['id'])]['outcome']}: {each['fault']}")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    return len(missed) > 0


def try_mutations(
    tree: Path, mutations: list[dict[str, Any]], limit: float, out: Path
) -> dict[str, dict[str, Any]]:
    """Return the outcomes by id, of this run and of earlier ones at this commit."""
    origin = describe_origin()
    saved = json.loads(out.read_text()) if out.exists() else {"origin": {}}
    is_same = saved["origin"].get("commit") == origin["commit"]
    outcomes = saved["outcomes"] if is_same else {}
    remaining = [each for each in mutations if str(each["id"]) not in outcomes]
    check_unmutated(tree, remaining)
    for each in remaining:
        outcomes[str(each["id"])] = outcome = try_mutation(tree, each, limit)
        part = out.with_suffix(".part")
        part.write_text(json.dumps({"origin": origin, "outcomes": outcomes}, indent=1) + "\n")
        part.replace(out)
        print(f"{each['id']:3} {' '.join(map(str, outcome.values()))}", flush=True)
    return outcomes


def describe_origin() -> dict[str, Any]:
    """Return commit and machine; in another process, for this one must not import the package."""
    code = "import json, torch, txl_lightning.machine as e;"
    code += "print(json.dumps(e.describe_environment(torch.device('cpu'))))"
    options = {"cwd": ROOT, "check": True, "capture_output": True, "text": True}
    origin = json.loads(subprocess.run([sys.executable, "-c", code], **options).stdout)
    head = subprocess.run(["git", "rev-parse", "HEAD"], **options).stdout.strip()
    return {"command": "python tests/mutations/mutate.py"} | origin | {"commit": head}


def copy_head(folder: Path) -> Path:
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def check_unmutated(tree: Path, mutations: list[dict[str, Any]]) -> None:
    tests = sorted({test for each in mutations for test in each["tests"]})
    code, said = run_tests(tree, tests, limit=3600) if tests else (0, "")
    if code:
        raise SystemExit(f"without any mutation: {said}")


def try_mutation(tree: Path, mutation: dict[str, Any], limit: float) -> dict[str, Any]:
    """Return the outcome in a copy of the tree, the first failed test, and the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(tree, folder, dirs_exist_ok=True))
        path = copy / mutation["file"]
        text = path.read_text() if path.exists() else ""
        if (count := text.count(mutation["find"])) != 1:
            return {"outcome": "does not apply", "by": f"its text occurs {count} times"}
        path.write_text(text.replace(mutation["find"], mutation["replace"]))
        code, said = run_tests(copy, mutation["tests"], limit)
    outcome = OUTCOMES.get(code, f"pytest's exit code {code}")
    by = said if outcome == "caught" or code not in OUTCOMES else ""
    return {"outcome": outcome, "by": by, "seconds": round(time.monotonic() - began, 1)}


def run_tests(tree: Path, tests: list[str], limit: float) -> tuple[int | None, str]:
    """Return pytest's exit code, None after the limit, and the first failed test or the output."""
    output = tree / "output"
    output.touch()
    # A fork of this process has all slow imports behind it.
    process = multiprocessing.get_context("fork").Process(
        target=run_pytest, args=(tree, tests, output)
    )
    process.start()
    try:
        process.join(limit)
        code = process.exitcode
        said = output.read_text(errors="replace")
    finally:
        # Also what the tests have started and not ended.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.MULTILINE)
    return code, failed[1] if failed else said[-1000:]


def run_pytest(tree: Path, tests: list[str], output: Path) -> None:
    os.setsid()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path.insert(0, str(tree))
    sys.exit(pytest.main([*PYTEST, *tests]))


if __name__ == "__main__":
    sys.exit(main())
