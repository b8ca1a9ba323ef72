"""Tests with transformers 5 and lm-evaluation-harness, in .venv-hub: make test-slow."""

import os
from importlib.util import find_spec

import pytest

if find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Data sets that the harness converts; its libraries read this name when they are imported."""
    os.environ["HF_HOME"] = str(tmp_path_factory.mktemp("hf"))
