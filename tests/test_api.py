"""docs/api.md has every public name, as its docstring says today."""

import re
from pathlib import Path

import pytest

import txl_lightning
from docs import make_api

PAGE = Path(make_api.__file__).with_name("api.md").read_text()


def test_the_page_of_names_is_what_their_docstrings_say():
    assert make_api.make_page() == PAGE, "run python docs/make_api.py"


@pytest.mark.parametrize("name", txl_lightning.HOMES)
def test_a_public_name_has_a_signature_a_sentence_and_an_example_on_the_page(name):
    section = PAGE.split(f"\n### {name}\n\n")[1].split("\n### ")[0]
    signature, sentence = section.split("\n\n")[:2]
    assert signature.startswith(f"`{name}(")
    assert sentence[0].isupper()
    assert "```python\n>>> " in section


def test_a_public_name_in_no_group_is_refused(monkeypatch):
    monkeypatch.setitem(txl_lightning.HOMES, "NewName", "model")
    with pytest.raises(ValueError, match="NewName"):
        make_api.make_page()


def test_each_dimension_in_a_name_is_in_the_legend_of_the_page():
    head, names = PAGE.split("\n## Text\n")
    legend = head.split("```")[1]
    used = {*"".join(re.findall(r"[a-z]_([A-Z]+)\b", names))}
    assert used >= {*"BLTVNM"}
    assert {*re.findall(r"(?<!\S)([A-Z])(?= )", legend)} >= used
