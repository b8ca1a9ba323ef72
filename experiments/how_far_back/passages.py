"""How much a network knows of a passage of the text that comes again.

In the control, another passage comes first; all else is equal. How much less the passage costs than
in the control is what the network still knows of it.
"""

from argparse import Namespace
from typing import Any

import numpy as np

from experiments import common
from txl_lightning import TransformerXL

MEMORY = 128
SEGMENT = 64
KINDS = {"passages memory": {}, "passages alone": {"model.net.mem_len": 0}}
OPTIONS = common.QUICKSTART | common.plan_steps(2000)
GAPS = (0, 64, 128, 192, 256, 384, 512, 1024)
ROWS = 96
PASSAGE = 32
BEFORE = 64
TRAINED = {"mem_len": MEMORY, "tgt_len": SEGMENT}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "passages memory": {"as trained": TRAINED, "512": TRAINED | {"mem_len": 512}},
    "passages alone": {"window": {"mem_len": 0, "tgt_len": 8, "ext_len": SEGMENT - 8}},
}
"""Ways of reading by kind."""


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return nats of the second passage, and of the control, by way of reading and gap."""
    options = OPTIONS | KINDS[kind] | (common.FAST if args.fast else {})
    run = common.train(args, f"{kind} {seed}", seed, options)
    gaps = GAPS[: 2 if args.fast else None]
    ids_T = run.store.ids("test")
    nats = {
        name: {str(gap): score_copies(run.net, ids_T, gap, seed, how) for gap in gaps}
        for name, how in WAYS[kind].items()
    }
    return {"kind": kind, "seed": seed, "nats": nats} | run.describe("val/bits_per_byte")


def score_copies(
    model: TransformerXL, ids_T: np.ndarray, gap: int, seed: int, how: dict[str, Any]
) -> dict[str, float]:
    """Return the mean nats of the passage that comes last, by what came first."""
    copy_BT, control_BT = make_rows(ids_T, gap, seed)
    return {"copy": score_end(model, copy_BT, how), "control": score_end(model, control_BT, how)}


def make_rows(ids_T: np.ndarray, gap: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids_BT in which the last passage came before, and the control.

    Of each row: text before a passage, the passage or another, code of `gap` tokens from the second
    half of the text, and the passage. The code next to the last passage is the same for all gaps.
    """
    generator = np.random.default_rng(seed)
    half = len(ids_T) // 2
    first_B, other_B = generator.integers(BEFORE, half - PASSAGE, (2, ROWS))
    end_B = generator.integers(half + max(GAPS), len(ids_T), ROWS)
    passage_BP, other_BP = (take(ids_T, start_B, PASSAGE) for start_B in (first_B, other_B))
    before_BT = take(ids_T, first_B - BEFORE, BEFORE)
    code_BT = take(ids_T, end_B - gap, gap)
    copy_BT, control_BT = (
        np.concatenate([before_BT, shown_BP, code_BT, passage_BP], axis=1)
        for shown_BP in (passage_BP, other_BP)
    )
    return copy_BT, control_BT


def take(ids_T: np.ndarray, start_B: np.ndarray, count: int) -> np.ndarray:
    """Return `count` ids from each start: ids_BC."""
    return ids_T[start_B[:, None] + np.arange(count)]


def score_end(model: TransformerXL, ids_BT: np.ndarray, how: dict[str, Any]) -> float:
    before = ids_BT.shape[1] - PASSAGE
    return common.read_rows(model, ids_BT, before, **how).mean().item()
