"""Run own_text.ipynb without Jupyter, and store its outputs in it.

    python -m experiments.own_text.notebook [--out FILE]

The environment variables BOOKS=FOLDER and FAST=1 choose other books, and tiny sizes.
"""

import argparse
import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

NOTEBOOK = Path(__file__).with_name("own_text.ipynb")


def main() -> None:
    """Run the cells in order, and write the notebook with their outputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=NOTEBOOK)
    out = parser.parse_args().out
    matplotlib.use("Agg")
    notebook = json.loads(NOTEBOOK.read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, start=1):
        cell |= {"execution_count": count, "outputs": execute("".join(cell["source"]), names)}
    out.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def execute(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; return its printed text and its open figures as notebook outputs."""
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, NOTEBOOK.name, "exec"), names)
    text = printed.getvalue().splitlines(keepends=True)
    outputs = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=90, facecolor="white")
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    pyplot.close("all")
    return outputs


if __name__ == "__main__":
    main()
