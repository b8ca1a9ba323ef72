"""convert: other people's checkpoints into ours, and ours into Hugging Face's."""

import shlex
import sys
from pathlib import Path
from typing import Literal

from ..checkpoints import save_folder
from ..checkpoints.runs import find_checkpoint
from ..checkpoints.tensors import load_json
from ..convert import load_any_checkpoint, save_huggingface
from ..data.documents import show_progress
from ..errors import require
from .card import CARD, write_card

WRITERS = {"txl": save_folder, "huggingface": save_huggingface}


def convert_command(
    source: str,
    out: str | None = None,
    to: Literal["txl", "huggingface"] = "txl",
    args: str | None = None,
    vocab: str | None = None,
) -> None:
    """Write a network, by whomever it was trained, as a folder of safetensors and JSON.

    Its README.md is a model card; the command that would upload the folder is printed.
    Nothing in a checkpoint is executed; one that would be is refused.

    Args:
        source: A checkpoint of fit or its run, a folder of convert's, a folder of Hugging Face's
            TransfoXL, a checkpoint_*.pt of NVIDIA's, or a state_dict of the original code (.pt,
            .safetensors).
        out: The folder to write; new, or empty.
        to: txl, for generate, fit, validate and test; or huggingface, for
            TransfoXLLMHeadModel.from_pretrained of transformers 4.57.
        args: A JSON file of the keywords of the original's constructor, for a state_dict of it.
        vocab: A file of words, one in a line, or JSON of them in a list or with their ids; a saved
            vocab.json; a Hugging Face tokenizer.json; or bytes. Left out, the checkpoint's own.
    """
    if out is None:
        raise ValueError("out: missing; expected the folder to write")
    folder = Path(out)
    is_new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(is_new, "out", out, "new, or an empty folder")
    with show_progress("convert", 2, in_bytes=False) as advance:
        model, vocabulary = load_any_checkpoint(source, args, vocab)
        advance(1)
        WRITERS[to](model, folder, vocabulary)
        advance(1)
    write_card(folder, model, vocabulary, find_checkpoint(source), to)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{folder}: {size:,} parameters, {model.config.n_token:,} tokens")
    if vocabulary is None:
        again = "give one with --vocab, and another --out"
        print(f"warning: no vocabulary came with it; {again}", file=sys.stderr)
    if args is not None:
        # A network of the original knows its segments; a folder of ours does not.
        keywords = load_json(Path(args))
        tgt_len, ext_len = keywords.get("tgt_len"), keywords.get("ext_len") or 0
        print(f"it was made for --data.tgt_len {tgt_len} --data.ext_len {ext_len}")
    where = shlex.join([f"YOUR_NAME/{folder.resolve().name}", str(folder)])
    print(f"to publish it, add a licence to {folder / CARD}, and: hf upload {where}")
