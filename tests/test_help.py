"""What --help says, and what it does not wait for."""

import subprocess
import sys

import pytest

from txl_lightning import __main__ as door

PLAIN = [verb for verb, (call, _) in door.VERBS.items() if call is door.plain]
SLOW = {"lightning", "torchmetrics", "wandb", "matplotlib", "scipy", "requests", "tokenizers"}


PROGRAM = """
import sys
from txl_lightning.__main__ import main
try:
    main()
finally:
    print(*{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def imported(repository, *arguments: str) -> set[str]:
    """The packages that a command has imported when it ends."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: python -m txl_lightning")
    return set(done.stderr.split())


@pytest.mark.parametrize("verb", PLAIN)
def test_the_help_of_our_own_verbs_does_not_wait_for_what_it_does_not_need(repository, verb):
    packages = imported(repository, verb, "--help")
    assert "jsonargparse" in packages
    assert not packages & SLOW


def test_the_verbs_are_listed_before_torch_is_imported(repository):
    assert not imported(repository, "--help") & {*SLOW, "torch", "numpy"}


def test_a_text_is_prepared_without_torch(repository):
    assert not imported(repository, "prepare", "--help") & {"torch", "rich"}
