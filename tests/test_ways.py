"""How many files somebody opens to follow one thing from its beginning to its end.

A file counts if a function of it runs. Not counted: the files beside __main__.py that every package
uses by name (errors, files, ...).
"""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from txl_lightning import CorpusDataModule, LanguageModel, TransformerXLConfig, __file__

PACKAGE = Path(__file__).parent
# Files of each way; lower a number with every file less, explain a raised one. Text to loss has one
# more: the size of a text chooses the number of its subwords, in vocab/subwords.py.
WAYS = {"text to loss": 21, "text to resumed run": 45, "evaluate": 25, "generate": 19}
# Files that are imported with a public name, apart from those that only say what a package is. Two
# more with CorpusDataModule: names of splits and JSON lines are no longer in text_files.py.
IMPORTS = {"LanguageModel": 38, "load": 25, "CorpusDataModule": 21, "Stream": 3}
NAMES = "import sys, txl_lightning; txl_lightning.{}; print(*sys.modules)"


@pytest.fixture
def follow(tmp_path):
    """Return the files of the package whose functions run in a call."""
    # An import runs bodies of classes, which nobody follows. hub/ has an environment of its own.
    for path in PACKAGE.glob("[!h]*/**/*.py"):
        import_module(".".join(["txl_lightning", *path.relative_to(PACKAGE).with_suffix("").parts]))

    def run(action: Callable[[], object]) -> list[str]:
        files = set[str]()

        def note_file(frame, event, _):
            path, is_import = frame.f_code.co_filename, frame.f_code.co_name == "<module>"
            if event == "call" and path.startswith(str(PACKAGE)) and not is_import:
                files.add(str(Path(path).relative_to(PACKAGE)))

        sys.setprofile(note_file)
        try:
            action()
        finally:
            sys.setprofile(None)
        return sorted(name for name in files if "/" in name and name.endswith(".py"))

    return run


def compute_loss(path: Path) -> None:
    """As in training: the loss of the first segment of a text, with the memory that it adds to."""
    data = CorpusDataModule(path=path, vocab="characters", tgt_len=8, batch_size=4)
    sizes = {"n_layer": 1, "n_head": 2, "d_model": 8, "mem_len": 8}
    model = LanguageModel(TransformerXLConfig(n_token=data.n_token, **sizes))
    segment = next(iter(data.train_dataloader()))
    memory = model.memory_bank.get("train", 0, 4)
    inputs = segment.tokens_BL, segment.targets_BL, memory, segment.doc_pos_BL
    model.net.loss(*inputs)[0].sum().backward()


def test_few_files_lie_on_each_way(follow, txl, small, text_file):
    ways = {"text to loss": follow(lambda: compute_loss(text_file))}
    more = ("--resume=auto", "--trainer.max_steps=6")
    ways["text to resumed run"] = follow(lambda: [txl("fit", *small), txl("fit", *small, *more)])
    ways["evaluate"] = follow(lambda: txl("evaluate", "runs/version_0"))
    ways["generate"] = follow(lambda: txl("generate", "runs/version_0", "--max_new_tokens=9"))
    over = {way: files for way, files in ways.items() if len(files) > WAYS[way]}
    assert not over, {way: len(files) for way, files in over.items()}


@pytest.mark.parametrize("name", IMPORTS)
def test_a_public_name_imports_few_files(name):
    command = [sys.executable, "-c", NAMES.format(name)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    parts = [each.split(".")[1:] for each in modules if each.startswith("txl_lightning.")]
    files = [each for each in parts if not PACKAGE.joinpath(*each).is_dir()]
    assert len(files) <= IMPORTS[name], sorted(".".join(each) for each in files)
