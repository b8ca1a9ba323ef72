"""Ways to read a text with a network of this question, and the bytes of a row's state in each.

The other texts are those of experiments/test_time, on which nobody tuned a network.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments import common
from experiments.how_far_back import passages
from experiments.state_bytes.figures import CACHED, FIRST_TEXT, SPAN, TRAINED
from experiments.stop_gradient.run import score_blocks
from experiments.test_time.texts import PARTS, find_text

CACHE_LEN = 2000
MEMORIES = (32, 64, 76, 96, 256, 512)
OF_TRANSFORMER_XL: dict[str, dict[str, Any]] = {
    SPAN: {"same_length": "mem_len"},
    **{f"memory of {length}": {"mem_len": length} for length in MEMORIES},
    CACHED: {"cache_len": CACHE_LEN},
}
"""Options of `evaluate` by way, beside the way in which a network was trained."""
TEXTS = (FIRST_TEXT, *PARTS)
TOKENS = 40_000
"""Tokens of each text but the first, of which the whole test text is read."""
GAPS = (64, 128, 256, 512, 1024)
"""Tokens between a passage and its second occurrence."""
SEGMENT = 64


def list_ways(net: str, cache: common.Options) -> dict[str, dict[str, Any]]:
    """Return the ways to read with a network; `cache` has the chosen options of the cache."""
    if net != "transformer_xl":
        return {TRAINED: {}}
    ways = {TRAINED: {}} | OF_TRANSFORMER_XL
    return ways | {CACHED: {**ways[CACHED], **cache}}


def read_texts(args: Namespace, run: common.TrainedRun, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return bits per byte of each text, and of its blocks, read in one way."""
    bits = {}
    blocks = {}
    for text in TEXTS[:1] if args.fast else TEXTS:
        of_text = {} if text == FIRST_TEXT else {"path": str(find_text(text)), "max_tokens": TOKENS}
        bits[text], blocks[text] = score_blocks(args, run, of_text | how)
    return {"bits_per_byte": bits, "blocks": blocks, "state_bytes": count_bytes(run, how)}


def count_bytes(run: common.TrainedRun, how: Mapping[str, Any]) -> int:
    """Return the bytes of a row's state in float32: its memory, and the cache with its tokens."""
    config = run.net.config
    if "mem_len" in how:
        config = replace(config, mem_len=how["mem_len"])
    memory = config.build().empty_memory(1)
    cached = how.get("cache_len", 0) * (4 * config.d_model + 8)
    return sum(tensor.nbytes for tensor in memory.tensors().values()) + cached


def score_passages(args: Namespace, run: common.TrainedRun, seed: int) -> dict[str, Any]:
    """Return the nats of a passage that comes again, and of its control, by the tokens between."""
    ids_T = run.store.ids("test")
    how = {"tgt_len": SEGMENT}
    gaps = GAPS[: 1 if args.fast else None]
    return {str(gap): passages.score_copies(run.net, ids_T, gap, seed, how) for gap in gaps}
