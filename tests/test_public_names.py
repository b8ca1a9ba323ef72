"""Each public name has a docstring with an example that runs."""

import doctest
import inspect
import pydoc
import re
import zipfile
from dataclasses import fields

import pytest
import torch

import txl_lightning
import txl_lightning.evaluation
from txl_lightning import OptimConfig, TransformerXL, TransformerXLConfig
from txl_lightning.checkpoints import save_folder
from txl_lightning.data.datamodule import CorpusConfig
from txl_lightning.data.vocab import Bytes

NAMES = {name: getattr(txl_lightning, name) for name in txl_lightning.HOMES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_help_begins_with_a_sentence_and_has_an_example_that_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = TransformerXL(TransformerXLConfig(n_layer=1, n_head=2, d_model=8, mem_len=8))
    save_folder(net, tmp_path / "version_0", Bytes())
    text = inspect.getdoc(NAMES[name])
    assert re.match(r"[A-Z][^.]*[^.\s]\.?(\n|$| )", text)
    [test] = doctest.DocTestFinder(recurse=False).find(NAMES[name], name, globs={})
    assert test.examples
    test.globs = NAMES | {"torch": torch}
    assert doctest.DocTestRunner().run(test).failed == 0


def test_stream_nats_is_a_name_of_evaluation_too():
    assert txl_lightning.evaluation.stream_nats is txl_lightning.stream_nats


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TransformerXLConfig", TransformerXLConfig),
        ("OptimConfig", OptimConfig),
        ("CorpusDataModule", CorpusConfig),
    ],
)
def test_help_explains_each_setting_and_no_other(name, kind):
    names = [field.name for field in fields(kind)]
    assert sorted(inspect.signature(NAMES[name]).parameters) == sorted(names)
    text = pydoc.render_doc(NAMES[name], renderer=pydoc.plaintext)
    explained = re.search(r"^ \|  Args:\n(.+?)^ \|(  \S|\s*$)", text, re.M | re.S)[1]
    assert sorted(re.findall(r"^ \|      (\w+): \w", explained, re.M)) == sorted(names)


PAGES = ["README.md", "docs/train.md"]
PAGES += [f"txl_lightning/{package}/README.md" for package in ("data", "generation")]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore")
def test_python_code_of_a_page_runs_unchanged(page, tmp_path, monkeypatch, repository):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("to be or not to be " * 999)
    with zipfile.ZipFile("my_books.zip", "w") as books:
        books.write("my.txt")
    net = TransformerXL(TransformerXLConfig(n_layer=1, n_head=2, d_model=8, mem_len=8))
    save_folder(net, tmp_path / "RUN", Bytes())
    [code] = re.findall(r"```python\n(.*?)```", (repository / page).read_text(), re.DOTALL)
    for long, short in (("d_model=128", "d_model=8"), ("2000", "4"), (": 200,", ": 2,")):
        code = code.replace(long, short)
    exec(code, {})
