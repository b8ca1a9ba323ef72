"""Run notebook.ipynb without Jupyter, and store its outputs in it: about ten minutes on two cores.

    python docs/run_notebook.py [--out FILE]

The environment variable MINUTES is the time of training in it. Lines that begin with ! are
commands, as in Jupyter.
"""

import argparse
import base64
import io
import json
import re
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

NOTEBOOK = Path(__file__).with_name("notebook.ipynb")


def main() -> None:
    """Run the cells in order, and write the notebook with their outputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=NOTEBOOK)
    out = parser.parse_args().out.resolve()
    matplotlib.use("Agg")
    notebook = json.loads(NOTEBOOK.read_text())
    names: dict[str, Any] = {"__name__": "__main__", "run_command": run_command}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, start=1):
        cell |= {"execution_count": count, "outputs": execute("".join(cell["source"]), names)}
    out.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def execute(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; return its printed text and its open figures as notebook outputs."""
    source = re.sub("^!(.*)$", r'run_command(f"""\1 """)', source, flags=re.MULTILINE)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, NOTEBOOK.name, "exec"), names)
    text = printed.getvalue().splitlines(keepends=True)
    outputs = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=80, facecolor="white")
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    pyplot.close("all")
    return outputs


def run_command(command: str) -> None:
    """Run a command of the shell, and print its output; CalledProcessError if it fails."""
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="")


if __name__ == "__main__":
    main()
