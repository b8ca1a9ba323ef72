"""What do short runs on bytes and on words reach, compared with xz and published results?

    python -m experiments.words.run [--seeds 1] [--only KIND ...] [--fast]

Kinds: 1.5 million bytes of the first 4,154,064 of enwik8 (90 % of these are for training), with a
memory of 128 ("bytes") and without memory, with the same parameters ("plain bytes"); one pass over
WikiText-2 in words, with the adaptive softmax ("words"). The prefix is cut from enwik8.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

from experiments import common
from txl_lightning.data.corpora import ENWIK8, place_file
from txl_lightning.data.recipe import DataConfig

PREFIX = 4_154_064
BYTES = common.MUON | common.flatten(
    {
        "model.net": {"n_layer": 4, "n_head": 4, "d_model": 128, "mem_len": 128, "norm": "pre"},
        "data": {"tgt_len": 64, "batch_size": 16},
        "trainer": {"max_steps": 1500, "val_check_interval": 500, "limit_val_batches": 50},
    }
)
BYTES |= {"trainer.gradient_clip_val": 1.0}
WORDS = BYTES | {
    "data.corpus": "wikitext2",
    "model.net.d_model": 160,
    "model.net.dropout": 0.1,
    "model.net.cutoffs": [2000, 10000],
    "model.net.div_val": 1,
    # Most words are rare: the rate of bytes is too high for their embeddings.
    "model.optim.lr": 3e-3,
    "trainer.max_steps": 2040,
    "trainer.val_check_interval": 1020,
}
KINDS = {"bytes": BYTES, "plain bytes": BYTES | {"model.net.mem_len": 0}, "words": WORDS}
# It needs no download.
FAST = common.FAST | {"data.corpus": "python_source"}
MEM_LENS = {"bytes": (0, 128, 256), "plain bytes": (0,), "words": (0, 128, 256)}
"""Memory lengths in evaluation."""
FIELDS = ("nats", "perplexity", "bits_per_byte", "tokens_scored", "interval")
"""Fields of an evaluation that the record keeps."""


def main() -> None:
    """Compress the bytes with xz; train and evaluate each kind with each seed."""
    args = common.parse_args(__file__, __doc__, seeds=(1,), vary="weights", kinds=KINDS)
    if args.only != ["words"]:
        path = None if args.fast else str(find_prefix())
        common.measure_once(args, "xz", common.measure_xz, DataConfig(path=path))
    common.measure_kinds(args, measure)


def find_prefix() -> Path:
    """Return the file of the first bytes of enwik8, cut from it if it is missing."""
    folder = DataConfig().data_folder
    path = folder / "enwik8_prefix.txt"
    if not path.is_file():
        [whole] = place_file(ENWIK8, folder / "enwik8")
        with whole.open("rb") as file:
            path.write_bytes(file.read(PREFIX))
    return path


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return evaluations of the test text by memory length, and the learning curve."""
    run = common.train(args, f"{kind} {seed}", seed, choose_options(args, kind))
    how = {"split": "test", "batch_size": 16, "tgt_len": 64}
    how |= {"max_tokens": 2000} if args.fast else {}
    tests = {}
    for mem_len in MEM_LENS[kind]:
        record = run.evaluate(how | {"mem_len": mem_len})
        tests[str(mem_len)] = {name: record[name] for name in FIELDS}
    return {"kind": kind, "seed": seed, "test_by_mem_len": tests} | run.describe("val/nats")


def choose_options(args: Namespace, kind: str) -> dict[str, Any]:
    if args.fast:
        return KINDS[kind] | FAST | ({"data.vocab": "words"} if kind == "words" else {})
    return KINDS[kind] | ({} if kind == "words" else {"data.path": str(find_prefix())})


if __name__ == "__main__":
    main()
