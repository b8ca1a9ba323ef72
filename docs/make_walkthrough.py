"""Put the package's code into docs/walkthrough.md, below each line `<!-- code: FILE NAMES -->`.

    python docs/make_walkthrough.py

A name is FUNCTION or CLASS.METHOD. Docstrings are left out: the page says more.
"""

import ast
import re
from pathlib import Path
from textwrap import dedent

PAGE = Path(__file__).with_name("walkthrough.md")
PACKAGE = Path(__file__).parents[1] / "txl_lightning"
BLOCK = re.compile(r"<!-- code: (\S+) ([\w. ]+) -->\n(?:```python\n.*?```\n)?", re.DOTALL)


def insert_code(text: str) -> str:
    """Return the page with the code of today below each marker."""
    return BLOCK.sub(make_block, text)


def make_block(match: re.Match[str]) -> str:
    file, names = match.groups()
    code = "\n\n\n".join(read_code(PACKAGE / file, name) for name in names.split())
    return f"<!-- code: {file} {names} -->\n```python\n{code}\n```\n"


def read_code(path: Path, name: str) -> str:
    """Return the source of a function or method without its docstring."""
    source = path.read_text()
    node: ast.AST = ast.parse(source)
    for part in name.split("."):
        [node] = [each for each in node.body if getattr(each, "name", None) == part]
    numbers = range(node.lineno, node.end_lineno + 1)
    if ast.get_docstring(node):
        first = node.body[0]
        numbers = [n for n in numbers if not first.lineno <= n <= first.end_lineno]
    lines = source.splitlines()
    return dedent("\n".join(lines[number - 1] for number in numbers))


if __name__ == "__main__":
    PAGE.write_text(insert_code(PAGE.read_text()))
