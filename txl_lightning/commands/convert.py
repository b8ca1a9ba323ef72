"""convert: checkpoints of other code into our format, and ours into Hugging Face's."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from ..checkpoints import save_folder
from ..checkpoints.contents import load_json
from ..convert import load_any_checkpoint, save_huggingface
from ..files import explain_write_errors, flush_to_disk, require_local_path
from ..model.config import require_transformer_xl
from ..runs.folder import CONVERTED, find_checkpoint
from ..terminal import show_progress
from .card import CARD, list_facts, write_card

UNFINISHED = ".unfinished-"
WRITERS = {"txl": save_folder, "huggingface": save_huggingface}


def convert_command(
    source: str,
    out: str | None = None,
    to: Literal["txl", "huggingface"] = "txl",
    args: str | None = None,
    vocab: str | None = None,
) -> None:
    """Write a network as a folder of safetensors and JSON.

    Its README.md is a model card. A checkpoint that would execute code is refused.

    Args:
        source: A checkpoint of fit or its run, a folder written by convert, a folder of Hugging
            Face's TransfoXL, NVIDIA's checkpoint_*.pt, or a state_dict of the original code (.pt,
            .safetensors).
        out: The folder to write: new, or empty.
        to: txl, for generate, fit, validate and test; or huggingface, for
            TransfoXLLMHeadModel.from_pretrained of transformers 4.57.
        args: JSON file with the keywords of the original's constructor, for its state_dict.
        vocab: File with a word in each line, or JSON of words in a list or with their ids; a saved
            vocab.json; a Hugging Face tokenizer.json; or bytes. Left out, the checkpoint's own.
    """
    if out is None:
        raise ValueError("--out is missing; expected the folder to write")
    folder = require_local_path("out", out)
    require_fillable(folder)
    with show_progress("convert", 2, in_bytes=False) as advance:
        model, vocabulary, ours = load_any_checkpoint(source, args, vocab)
        require_transformer_xl(model, "source", source)
        advance(1)

        def write_folder(part: Path) -> None:
            WRITERS[to](model, part, vocabulary)
            facts = list_facts(model, vocabulary, ours or find_checkpoint(source))
            write_card(part, folder.resolve().name, to, facts)

        fill_folder(folder, write_folder)
        advance(1)
    size = sum(each.numel() for each in model.parameters())
    print(f"{folder}: {size:,} parameters, {model.config.n_token:,} tokens")
    if vocabulary is None:
        hint = "add one with --vocab and another --out"
        print(f"warning: the checkpoint has no vocabulary; {hint}", file=sys.stderr)
    if args is not None:
        # The original's network stores segment lengths; our folder does not.
        keywords = load_json(Path(args))
        ext_len = keywords.get("ext_len") or 0
        print(f"it was made for --data.tgt_len {keywords.get('tgt_len')} --data.ext_len {ext_len}")
    target = shlex.join([f"YOUR_NAME/{folder.resolve().name}", str(folder)])
    print(f"to publish it, add a licence to {folder / CARD}, and: hf upload {target}")


def require_fillable(folder: Path) -> None:
    if not is_fillable(folder):
        kind = "is a file" if folder.is_file() else "is not empty"
        raise ValueError(f"out: {folder} {kind}; give a new or empty folder")


def is_fillable(folder: Path) -> bool:
    """Return True for a new folder, an empty one, and one that `fill_folder` did not complete."""
    names = os.listdir(folder) if folder.is_dir() else []
    is_unfinished = any(name.startswith(UNFINISHED) for name in names)
    return is_unfinished or not (names or folder.is_file())


def fill_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Write the files of a fillable folder, or none after an error; the folder may be a volume.

    Files are written to a hidden folder in it, then moved, config.json as the last one.
    """
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(f"{UNFINISHED}*"):
            shutil.rmtree(unfinished)
        try:
            with TemporaryDirectory(dir=folder, prefix=UNFINISHED) as part:
                fill(Path(part))
                # The settings last: a folder without them is no checkpoint.
                for name in sorted(os.listdir(part), key=lambda name: name == CONVERTED):
                    os.replace(Path(part, name), folder / name)
                flush_to_disk(folder)
        finally:
            # Remove the folder if it is empty.
            with suppress(OSError):
                folder.rmdir()
