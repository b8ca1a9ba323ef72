"""Write docs/api.md: the public names, with signature, first sentences, errors and example.

    python docs/make_api.py

Everything comes from the docstrings, whose examples are tests (tests/test_public_names.py).
"""

import doctest
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import txl_lightning
from txl_lightning.model import transformer_xl

PAGE = Path(__file__).with_name("api.md")
SOURCE = Path(__file__).parents[1] / "txl_lightning"
GROUPS = {
    "Text": ("CorpusDataModule", "Vocabulary", "load_vocabulary", "Stream", "Segment"),
    "Network": ("TransformerXLConfig", "TransformerXL", "Memory", "KeyValueCache"),
    "Training": ("LanguageModel", "OptimConfig", "TimeBudget"),
    "Evaluation and generation": ("load", "stream_nats", "Adaptation", "generate", "score"),
    "One step after another": (
        "encode_prompt",
        "start_decoding",
        "decode_steps",
        "Sampling",
        "start_scoring",
        "score_candidates",
        "DecodingState",
    ),
    "Texts that come in parts": ("Sessions", "Session", "ScoredToken", "join_words"),
}
HEAD = """# Public names

`from txl_lightning import ...` has the names below. `help(NAME)` prints all of their arguments.
[Training in Python](train.md#in-python) uses most of them together. In the examples, `version_0`
is a run's folder. Public, too, are the errors below, and the names of [your own
network](own_network.md), of [`hub`](../txl_lightning/hub/README.md) and of
[`convert`](../txl_lightning/convert/README.md). All others are private, and may change in any
version ([what is stable](versions.md)). This page is written by [`make_api.py`](make_api.py) from
the docstrings.

An invalid argument is a `ValueError`. DataError, CheckpointError, ClassError, NonFiniteError,
StorageError and OutOfMemoryError are ValueErrors of `txl_lightning.errors`, each with an
`exit_code`.

A tensor's name ends with its dimensions: `tokens_BL` has a row for each text, and L tokens in each.

```text
{legend}
T tokens of a whole text   W recent tokens
```
"""
LONGEST_DEFAULT = 24


def make_page() -> str:
    """Return the page; ValueError if a public name is in no group."""
    grouped = {name for names in GROUPS.values() for name in names}
    if grouped != {*txl_lightning.HOMES}:
        raise ValueError(f"GROUPS: {grouped ^ {*txl_lightning.HOMES}}; expected the public names")
    legend = inspect.cleandoc(transformer_xl.__doc__ or "").rpartition("\n\n")[2]
    parts = [HEAD.format(legend=legend)]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [describe(name, getattr(txl_lightning, name)) for name in names]
    return "\n".join(parts)


def describe(name: str, value: Any) -> str:
    """Return a name's heading, its signature, the text before its arguments, and its example."""
    text, *sections = re.split(r"\n\n(?=Args:\n|Raises:\n)", inspect.getdoc(value) or "")
    parts = doctest.DocTestParser().parse(text)
    prose = "".join(part for part in parts if isinstance(part, str))
    prose = re.sub(r"\n{3,}", "\n\n", prose).strip()
    prose += "".join(map(list_errors, sections))
    example = re.search(r"^>>>.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    file = inspect.getsourcefile(inspect.unwrap(value))
    path = Path(file or "").relative_to(SOURCE)
    source = f"[`{path}`](../txl_lightning/{path})"
    code = f"```python\n{example[0]}\n```\n" if example else ""
    return f"### {name}\n\n`{sign(name, value)}`\n\n{prose}\n\nSource: {source}\n\n{code}"


def list_errors(section: str) -> str:
    """Return a docstring's section "Raises:" as a list; nothing for another section."""
    if not section.startswith("Raises:\n"):
        return ""
    errors = textwrap.dedent(section.removeprefix("Raises:\n")).replace("\n    ", "\n  ")
    return "\n\nErrors:\n\n" + re.sub(r"^(\w+): ", r"- \1: ", errors, flags=re.MULTILINE)


def sign(name: str, value: Any) -> str:
    """Return a call with the names of all arguments, and defaults that are short."""
    signature = inspect.signature(value)
    parameters = []
    for each in signature.parameters.values():
        is_long = len(repr(each.default)) > LONGEST_DEFAULT or " object at " in repr(each.default)
        default = "..." if is_long and each.default is not each.empty else each.default
        parameters.append(each.replace(annotation=each.empty, default=default))
    signature = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return f"{name}{signature}".replace("'...'", "...")


if __name__ == "__main__":
    PAGE.write_text(make_page())
