"""convert: other people's checkpoints into ours, and ours into Hugging Face's."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..checkpoints import save_folder
from ..checkpoints.tensors import load_json
from ..convert import save_huggingface
from ..convert.detect import load_any_checkpoint

WRITERS = {"txl": save_folder, "huggingface": save_huggingface}


def convert_command(
    source: str,
    out: str | None = None,
    to: Literal["txl", "huggingface"] = "txl",
    args: str | None = None,
    vocab: str | None = None,
) -> None:
    """Write a network, by whomever it was trained, as a folder of safetensors and JSON.

    Nothing in a checkpoint is executed; one that would be is refused.

    Args:
        source: A checkpoint of fit, a folder of convert's, a folder of Hugging Face's TransfoXL, a
            checkpoint_*.pt of NVIDIA's, or a state_dict of the original code (.pt, .safetensors).
        out: The folder to write; new, or empty.
        to: txl, for generate, and for fit, validate and test as ckpt_path; or huggingface, for
            TransfoXLLMHeadModel.from_pretrained of transformers 4.57.
        args: A JSON file of the keywords of the original's constructor, for a state_dict of it.
        vocab: A file of words, one in a line, or JSON of them in a list or with their ids; a saved
            vocab.json; a Hugging Face tokenizer.json; or bytes. Left out, the checkpoint's own.
    """
    folder = new_folder(out)
    model, vocabulary = load_any_checkpoint(source, args, vocab)
    WRITERS[to](model, folder, vocabulary)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{folder}: {size:,} parameters, {model.config.n_token:,} tokens")
    if vocabulary is None:
        again = "give one with --vocab, and another --out"
        print(f"warning: no vocabulary came with it; {again}", file=sys.stderr)
    if args is not None:
        print(segments_of(load_json(Path(args))))


def segments_of(keywords: Mapping[str, Any]) -> str:
    """What a network of the original knows of its segments, and a folder of ours does not."""
    tgt_len, ext_len = keywords.get("tgt_len"), keywords.get("ext_len") or 0
    return f"it was made for --data.tgt_len {tgt_len} --data.ext_len {ext_len}"


def new_folder(out: str | None) -> Path:
    """Where to write.

    Raises:
        ValueError: nothing is said, or something is there.
    """
    if out is None:
        raise ValueError("out: missing; it must be the folder to write")
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"out: invalid {out}; expected new, or an empty folder")
    return folder
