"""Tests with transformers 5 and lm-evaluation-harness, in .venv-hub: make test-slow."""

import os
import tempfile
from importlib.util import find_spec

if find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # Data sets that the harness converts. Libraries read these names when they are imported.
    CACHE = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ |= {"HF_HOME": CACHE.name, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
