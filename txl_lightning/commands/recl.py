"""recl: measure how much context is of use to models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..analysis.plots import label_recl, plot_gains
from ..analysis.recl import THRESHOLD, compute_recl, score_context, spread_targets
from ..checkpoints.runs import find_checkpoint, sha256_of_weights
from ..data.documents import show_progress
from ..data.vocab import Vocabulary
from ..errors import require
from ..evaluation.environment import describe_environment
from ..evaluation.tables import write_table
from ..model import TransformerXL
from .inputs import Device, find_tgt_len, load_model, make_output_folder, read_ids
from .runs import shorten_paths


def recl_command(
    ckpt_path: tuple[str, ...],
    step: int = 100,
    max_context: int = 1000,
    r: tuple[float, ...] = (0.1, 0.5, 1.0),
    positions: int = 2000,
    reading: Literal["whole", "trained"] = "whole",
    path: str | None = None,
    split: str = "val",
    device: Device = None,
    out: str | None = None,
) -> None:
    """Measure how much context is of use to a group of checkpoints of one vocabulary, on one text.

    RECL (Dai et al. 2019, Appendix C): where a step more lowers perplexity by less than 1 %, judged
    by what no model could do with less. Written as .csv and .json: recl, gains; and recl.png.

    Args:
        ckpt_path: Checkpoints written by fit, or runs' folders, for their best.ckpt.
        step: Tokens by which the context grows.
        max_context: The longest context.
        r: Shares of the positions, the hardest with the shorter context, that are looked at.
        positions: Targets, evenly spread over the text.
        reading: How the tokens of a context are read: whole, so that each token sees all of the
            context before it; or trained, in the segments and with the memory of training.
        path: A text to measure on; left out, that of the first checkpoint's run.
        split: Which part of that text.
        device: Device of the model; left out, a GPU if there is one.
        out: Folder to write to; left out, recl beside the first checkpoint.
    """
    check_options(step, max_context, r, positions)
    checkpoints = [find_checkpoint(path) for path in ckpt_path]
    models, vocab = load_group(checkpoints, device)
    tokens = read_ids(checkpoints[0], vocab, path, split)
    place_P = spread_targets(len(tokens), max_context, positions)
    folder = make_output_folder(out, checkpoints[0], "recl")
    contexts, is_whole = range(step, max_context + 1, step), reading == "whole"
    print(f"nats per {vocab.unit}, at {len(place_P):,} positions, by context")
    lengths = [
        {} if is_whole else {"tgt_len": find_tgt_len(each), "mem_len": model.config.mem_len}
        for each, model in zip(checkpoints, models.values(), strict=True)
    ]
    nats = score_models(models, tokens, place_P, contexts, lengths)
    about = describe_group(models, checkpoints) | {"reading": reading, "positions": len(place_P)}
    about |= {"path": path, "split": None if path else split}
    write_results(folder, nats, r, about | {"contexts": list(contexts), "unit": vocab.unit})


def score_models(
    models: dict[str, TransformerXL],
    tokens: np.ndarray,
    place_P: np.ndarray,
    contexts: Sequence[int],
    lengths: Sequence[dict[str, int]],
) -> dict[str, np.ndarray]:
    """Return each model's nats_CP, and print their means as they become known."""
    nats = {}
    with show_progress("recl", len(models) * len(contexts), in_bytes=False) as advance:
        for (name, model), given in zip(models.items(), lengths, strict=True):
            rows = []
            for context in contexts:
                rows.append(score_context(model, tokens, place_P, context, **given))
                print(f"{name}  {context:6,}  {rows[-1].mean():.4f}", flush=True)
                advance(1)
            nats[name] = np.stack(rows)
    return nats


def check_options(step: int, max_context: int, r: Sequence[float], positions: int) -> None:
    require(step >= 1, "step", step, "at least 1")
    # A gain needs two lengths of context.
    require(max_context >= 2 * step, "max_context", max_context, f"at least 2 * step ({2 * step})")
    require(positions >= 1, "positions", positions, "at least 1")
    require(all(0 < share <= 1 for share in r), "r", list(r), "each above 0 and at most 1")


def write_results(
    folder: Path, nats: dict[str, np.ndarray], r: Sequence[float], about: dict[str, Any]
) -> None:
    found, gains = compute_recl(nats, about["contexts"], r)
    means = {name: nats_CP.mean(axis=1).tolist() for name, nats_CP in nats.items()}
    write_table(found, folder / "recl", about | {"nats": means})
    write_table(gains, folder / "gains", about)
    plot_gains(gains, found, folder / "recl.png", about["unit"], THRESHOLD)
    for row in found:
        print(f"{row['model']}  r {row['r']:g}  RECL {label_recl(row)}")
    print(f"written to {folder}")


def describe_group(models: dict[str, TransformerXL], checkpoints: Sequence[Path]) -> dict[str, Any]:
    sha256 = dict(zip(models, map(sha256_of_weights, checkpoints), strict=True))
    about = {"checkpoints": dict(zip(models, map(str, checkpoints), strict=True))}
    about |= describe_environment(next(iter(models.values())).device)
    return about | {"checkpoint_sha256": sha256}


def load_group(
    paths: Sequence[Path], device: Device
) -> tuple[dict[str, TransformerXL], Vocabulary]:
    """Load models by name, and their one vocabulary."""
    are_different = len(set(paths)) == len(paths)
    require(are_different, "ckpt_path", ", ".join(map(str, paths)), "different files")
    models, vocabs = zip(*(load_model(path, device) for path in paths), strict=True)
    for path, vocab in zip(paths, vocabs, strict=True):
        if vocab.fingerprint != vocabs[0].fingerprint:
            raise ValueError(f"ckpt_path: {path} has another vocabulary than {paths[0]}")
    return dict(zip(shorten_paths(paths), models, strict=True)), vocabs[0]
