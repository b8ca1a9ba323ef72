"""recl: measure how much context models use."""

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..analysis.context_length import THRESHOLD, Nats, compute_recl, score_context, spread_targets
from ..analysis.plots import label_recl, plot_gains
from ..checkpoints import LoadedCheckpoint
from ..data.vocab import Vocabulary
from ..errors import prefix_errors, require, require_positive
from ..machine import describe_environment
from ..model import Network, find_device
from ..runs.folder import find_checkpoint
from ..runs.listing import shorten_paths
from ..tables import write_table
from ..terminal import show_progress
from .inputs import Device, choose_split, load_model, make_output_folder, read_ids, share_unknown


def recl_command(
    ckpt_path: tuple[str, ...],
    step: int = 100,
    max_context: int = 1000,
    r: tuple[float, ...] = (0.1, 0.5, 1.0),
    positions: int = 2000,
    reading: Literal["whole", "trained"] = "whole",
    path: str | None = None,
    split: str | None = None,
    device: Device = None,
    out: str | None = None,
) -> None:
    """Measure how much context a group of checkpoints of one vocabulary uses, on one text.

    RECL (Dai et al. 2019, Appendix C) is the context from which another step lowers perplexity by
    less than 1 %, relative to the best model with the shorter context. Unrelated tokens lower it
    too: a control takes each step from elsewhere in the text. Writes .csv, .json and .png files.

    Args:
        ckpt_path: Checkpoints written by fit, or runs' folders, for their best.ckpt.
        step: Tokens by which the context grows.
        max_context: The longest context.
        r: Fractions of the positions that count, those hardest with the shorter context.
        positions: Targets, evenly spread over the text.
        reading: How a context is read: whole, so that each token sees all of it before itself; or
            trained, in the segments and with the memory of training.
        path: Text, file of ids or store; left out, that of the first checkpoint's run.
        split: Part of that text: train, val or test; left out, val.
        device: Device of the models; left out, a GPU if there is one.
        out: Folder to write to; left out, recl in the first run's folder.
    """
    require_positive(step=step, positions=positions)
    # A gain needs two lengths of context.
    require(max_context >= 2 * step, "max_context", max_context, f"at least 2 * step ({2 * step})")
    require(all(0 < fraction <= 1 for fraction in r), "r", list(r), "each above 0 and at most 1")
    checkpoints, models, vocab = load_group(ckpt_path, device)
    tokens = read_ids(checkpoints[0], vocab, path, split)
    place_P = spread_targets(len(tokens), max_context, positions)
    folder = make_output_folder(out, checkpoints[0].run_folder, "recl")
    contexts = range(step, max_context + 1, step)
    print(f"nats per {vocab.unit}, at {len(place_P):,} positions, by context")
    trained = checkpoints if reading == "trained" else []
    nats, control = score_models(models, tokens, place_P, contexts, trained)
    named = dict(zip(models, checkpoints, strict=True))
    origin = {"checkpoints": {name: str(each.path) for name, each in named.items()}}
    origin |= describe_environment(find_device(next(iter(models.values()))))
    origin |= {"checkpoint_sha256": {name: each.sha256 for name, each in named.items()}}
    origin |= {"reading": reading, "positions": len(place_P), "path": path, "unit": vocab.unit}
    origin |= {"split": choose_split(path, split), "unknown_share": share_unknown(vocab, tokens)}
    write_results(folder, nats, control, r, origin | {"contexts": [*contexts]})


def score_models(
    models: dict[str, Network],
    tokens: np.ndarray,
    place_P: np.ndarray,
    contexts: Sequence[int],
    trained: Sequence[LoadedCheckpoint],
) -> tuple[Nats, Nats]:
    """Return each model's nats_CP, real and with unrelated added tokens; print each mean at once.

    Contexts are read whole, or in the segments of the checkpoints in `trained`.
    """
    nats = {}
    control = {}
    with show_progress("recl", len(models) * len(contexts), in_bytes=False) as advance:
        for (name, model), each in zip_longest(models.items(), trained):
            mem_len = model.config.mem_len
            rows = []
            control_rows = []
            segments = {"tgt_len": each.tgt_len, "mem_len": mem_len} if each else {}
            for shorter, context in pairwise([0, *contexts]):
                targets = model, tokens, place_P, context
                with prefix_errors(name, ": "):
                    rows.append(score_context(*targets, **segments))
                means = f"{rows[-1].mean():.4f}"
                # The first context has no shorter one, so no gain.
                if shorter:
                    added = context - shorter
                    control_rows.append(score_context(*targets, **segments, unrelated=added))
                    means += f"  with unrelated added tokens {control_rows[-1].mean():.4f}"
                print(f"{name}  {context:6,}  {means}", flush=True)
                advance(1)
            nats[name] = np.stack(rows)
            control[name] = np.stack(control_rows)
    return nats, control


def write_results(
    folder: Path, nats: Nats, control: Nats, r: Sequence[float], origin: dict[str, Any]
) -> None:
    recls, gains = compute_recl(nats, control, origin["contexts"], r)
    for name, values in (("nats", nats), ("control_nats", control)):
        origin[name] = {model: nats_CP.mean(axis=1).tolist() for model, nats_CP in values.items()}
    write_table(recls, folder / "recl", origin)
    write_table(gains, folder / "gains", origin)
    plot_gains(gains, recls, folder / "recl.png", origin["unit"], THRESHOLD)
    for row in recls:
        recl = f"RECL {label_recl(row)}, {row['recl_net']:,} by gain less control"
        print(f"{row['model']}  r {row['r']:g}  {recl}")
    print(f"written to {folder}")


def load_group(
    names: Sequence[str], device: Device
) -> tuple[list[LoadedCheckpoint], dict[str, Network], Vocabulary]:
    """Load checkpoints, their networks by name, and their one vocabulary."""
    paths = [find_checkpoint(name) for name in names]
    is_set = len({path.resolve() for path in paths}) == len(paths)
    require(is_set, "ckpt_path", ", ".join(map(str, paths)), "different files")
    loaded = [load_model(path, device) for path in paths]
    checkpoints, models, vocabs = map(list, zip(*loaded, strict=True))
    for path, vocab in zip(paths, vocabs, strict=True):
        if vocab.fingerprint != vocabs[0].fingerprint:
            raise ValueError(f"ckpt_path: {path} has another vocabulary than {paths[0]}")
    return checkpoints, dict(zip(shorten_paths(paths), models, strict=True)), vocabs[0]
