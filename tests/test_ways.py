"""How many files somebody opens to follow one thing from its beginning to its end.

A file counts if a function of it runs, whatever its folder.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from txl_lightning import (
    CorpusDataModule,
    Segment,
    TransformerXL,
    TransformerXLConfig,
    __file__,
)

PACKAGE = Path(__file__).parent
# Files of each way; lower a number with every file less, explain a raised one.
WAYS = {
    "text to first training step": 42,
    "resumed run to first training step": 49,
    "evaluate": 41,
    # A token is read in another way than a segment (`ring.py`).
    "generate": 34,
    "text to batch": 13,
    "ids to loss": 11,
}
# Files that are imported with a public name, apart from those that only say what a package is.
IMPORTS = {"LanguageModel": 35, "load": 26, "CorpusDataModule": 22, "Stream": 3}
NAMES = "import sys, txl_lightning; txl_lightning.{}; print(*sys.modules)"


@pytest.fixture
def follow():
    """Return the files of the package whose functions run in a call, to a first training step."""
    # An import runs bodies of classes, which nobody follows. Files with transformers have an
    # environment of their own.
    paths = [path for path in PACKAGE.rglob("*.py") if "from transformers" not in path.read_text()]
    for path in [path for path in paths if path.parent.name != "hub"]:
        import_module(".".join(["txl_lightning", *path.relative_to(PACKAGE).with_suffix("").parts]))

    def run(action: Callable[[], object]) -> list[str]:
        files = set[str]()

        def note_file(frame, event, _):
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(str(PACKAGE)):
                files.add(str(Path(code.co_filename).relative_to(PACKAGE)))
                if code.co_name == "training_step":
                    sys.setprofile(None)

        sys.setprofile(note_file)
        try:
            action()
        finally:
            sys.setprofile(None)
        return sorted(files)

    return run


def make_batch(path: Path) -> tuple[int, Segment]:
    """Return the size of a vocabulary that is built from a text, and the first segment."""
    folder = path.with_name("data")
    data = CorpusDataModule(path=path, data_dir=folder, vocab="bpe", tgt_len=8, batch_size=4)
    return data.n_token, next(iter(data.train_dataloader()))


def test_few_files_lie_from_a_text_to_a_loss(follow, text_file):
    found = []
    files = follow(lambda: found.append(make_batch(text_file)))
    [(n_token, segment)] = found
    assert len(files) <= WAYS["text to batch"], files
    net = TransformerXL(TransformerXLConfig(n_token=n_token, n_layer=1, n_head=2, d_model=8))
    files = follow(lambda: net.loss(segment.tokens_BL, segment.targets_BL)[0].sum().backward())
    assert len(files) <= WAYS["ids to loss"], files


def test_few_files_lie_on_the_way_of_a_command(follow, txl, small):
    small = [*small, "--data.data_dir=data"]  # Nothing is prepared yet.
    ways = {
        "text to first training step": ["fit", *small],
        "resumed run to first training step": [
            "fit",
            *small,
            "--resume=auto",
            "--trainer.max_steps=6",
        ],
        "evaluate": ["evaluate", "runs/version_0"],
        "generate": ["generate", "runs/version_0", "--max_new_tokens=9"],
    }
    files = {way: follow(partial(txl, *words)) for way, words in ways.items()}
    over = {way: names for way, names in files.items() if len(names) > WAYS[way]}
    assert not over, {way: (len(names), names) for way, names in over.items()}


@pytest.mark.parametrize("name", IMPORTS)
def test_a_public_name_imports_few_files(name):
    command = [sys.executable, "-c", NAMES.format(name)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    parts = [each.split(".")[1:] for each in modules if each.startswith("txl_lightning.")]
    files = [each for each in parts if not PACKAGE.joinpath(*each).is_dir()]
    assert len(files) <= IMPORTS[name], sorted(".".join(each) for each in files)
