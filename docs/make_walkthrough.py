"""Put the package's code into docs/walkthrough.md, below each line "```python FILE NAMES".

    python docs/make_walkthrough.py

A name is FUNCTION or CLASS.METHOD, and NAME:body leaves out the signature. Docstrings and
comments are left out: the page says more.
"""

import ast
import re
from pathlib import Path
from textwrap import dedent

PAGE = Path(__file__).with_name("walkthrough.md")
PACKAGE = Path(__file__).parents[1] / "txl_lightning"
BLOCK = re.compile(r"```python (\S+) ([\w.: ]+)\n.*?```\n", re.DOTALL)


def insert_code(text: str) -> str:
    """Return the page with the code of today below each marker."""
    return BLOCK.sub(make_block, text)


def make_block(match: re.Match[str]) -> str:
    file, names = match.groups()
    code = "\n\n".join(read_code(PACKAGE / file, name) for name in names.split())
    return f"```python {file} {names}\n{code}\n```\n"


def read_code(path: Path, name: str) -> str:
    """Return the source of a function or method, or of its body, without docstring and comments."""
    source = path.read_text()
    node: ast.AST = ast.parse(source)
    name, _, part = name.partition(":")
    for each in name.split("."):
        [node] = [child for child in node.body if getattr(child, "name", None) == each]
    statements = node.body[1:] if ast.get_docstring(node) else node.body
    lines = source.splitlines()
    signature = [] if part == "body" else lines[node.lineno - 1 : node.body[0].lineno - 1]
    body = lines[statements[0].lineno - 1 : node.end_lineno]
    return dedent("\n".join(signature + [line for line in body if line.strip()[:1] != "#"]))


if __name__ == "__main__":
    PAGE.write_text(insert_code(PAGE.read_text()))
