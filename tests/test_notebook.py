"""docs/notebook.ipynb runs from its first to its last cell, and shows what it showed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def read_outputs(notebook: Path) -> tuple[list[str], int]:
    """Return the printed texts of a notebook, and the number of its pictures."""
    cells = json.loads(notebook.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    texts = ["".join(each["text"]) for each in outputs if each["output_type"] == "stream"]
    return texts, sum("image/png" in each.get("data", {}) for each in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("mem_len", ["64", "0"])
def test_the_notebook_runs_anywhere_in_a_short_time(repository, tmp_path, mem_len):
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("notebook.ipynb", "run_notebook.py", "tiny_shakespeare.txt.gz"):
        shutil.copy(DOCS / name, docs)
    environment = os.environ | {"MINUTES": "0.05", "MEM_LEN": mem_len}
    environment |= {"PYTHONPATH": str(repository)}
    command = [sys.executable, "run_notebook.py"]
    done = subprocess.run(command, cwd=docs, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts, n_picture = read_outputs(docs / "notebook.ipynb")
    assert n_picture == 3
    kinds = ("1,003,854 characters", "memory of 256", "continued ---", "report.html", "test/nats")
    assert [kind for kind in kinds if not any(kind in text for text in texts)] == []


def test_the_notebook_shows_what_memory_is_worth():
    texts, n_picture = read_outputs(DOCS / "notebook.ipynb")
    assert n_picture == 3
    [losses] = [text for text in texts if text.startswith("memory of   0")]
    nats = [float(line.split(": ")[1].split()[0]) for line in losses.splitlines()]
    assert nats[0] - nats[5] > 0.05, "a memory of 64 beside none"
