"""docs/api.md has every public name, as its docstring says today."""

from pathlib import Path

import pytest

import txl_lightning
from docs import make_api

PAGE = Path(make_api.__file__).with_name("api.md").read_text()


def test_the_page_of_names_is_what_their_docstrings_say():
    assert make_api.make_page() == PAGE, "run python docs/make_api.py"


@pytest.mark.parametrize("name", txl_lightning.HOMES)
def test_a_public_name_has_a_sentence_and_an_example_on_the_page(name):
    section = PAGE.split(f"\n### {name}\n\n")[1].split("\n### ")[0]
    assert section[0].isupper()
    assert "```python\n>>> " in section


def test_a_public_name_in_no_group_is_refused(monkeypatch):
    monkeypatch.setitem(txl_lightning.HOMES, "NewName", "model")
    with pytest.raises(ValueError, match="NewName"):
        make_api.make_page()
