"""Do the paper's Tables 6, 7 and 10 hold for a small network?

    python -m experiments.the_paper.run [--seeds 11 12 13 14 15] [--only KIND ...] [--fast]

README.md has the setting. Rates are chosen after the tokens of early kinds, with seed 0, which is
not reported. Also measured: the nats that a network saves on a passage that comes again after 64
tokens.
"""

from argparse import Namespace
from typing import Any

from experiments import common
from experiments.how_far_back.passages import score_copies
from experiments.results import load_records
from experiments.the_paper.rows import KINDS, READ, READ_LENS, Row
from experiments.the_paper.training import (
    RATES,
    TUNING_SEED,
    cut_pieces,
    measure_best_length,
    pick_sizes,
    read_with_memories,
    score_segments,
    segment_len,
    train_kind,
    train_row,
)

GAP = 64  # tokens between a passage and itself


def main() -> None:
    """Choose the rate of each row, then train and test each kind with each seed."""
    args = common.parse_args(__file__, __doc__, (11, 12, 13, 14, 15), kinds=KINDS)
    for row in dict.fromkeys(KINDS[kind].row for kind in args.only if not KINDS[kind].is_early):
        common.measure_once(args, f"rate {row.name}", choose_rate, row)
    common.measure_kinds(args, measure)


def choose_rate(args: Namespace, row: Row) -> dict[str, Any]:
    """Return the validation perplexity of each rate, and the best rate."""
    sizes, losses = pick_sizes(args), {}
    for rate in RATES[: 2 if args.fast else None]:
        run = train_row(args, f"rate {row.name} {rate:g}", row, 1, TUNING_SEED, rate, {})
        val_PT = cut_pieces(run.store, "val", sizes)
        losses[f"{rate:g}"] = score_segments(run.net, val_PT, row, sizes)
    best = float(min(losses, key=lambda rate: losses[rate]))
    return {"kind": "rate", "net": row.name, "text": run.text, "val": losses, "rate": best}


def find_rate(args: Namespace, kind: str) -> float:
    how = KINDS[kind]
    return RATES[1] if how.is_early else load_records(args.out)[f"rate {how.row.name}"]["rate"]


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return the perplexities of a kind, read as trained and with the best attention length."""
    how, sizes, rate = KINDS[kind], pick_sizes(args), find_rate(args, kind)
    run = train_kind(args, kind, seed, rate)
    test_PT = cut_pieces(run.store, "test", sizes)
    lengths = {"mem_len": run.net.config.mem_len, "tgt_len": segment_len(how.row, sizes)}
    passages = score_copies(run.net, run.store.ids("test"), GAP, seed, lengths)
    record = {
        "kind": kind,
        "seed": seed,
        "rate": rate,
        "saved_on_copy": passages["control"] - passages["copy"],
        "segments": score_segments(run.net, test_PT, how.row, sizes),
        "tokens": count_tokens(run.options),
    }
    if how.is_early and how.row in READ:
        lengths = [n for n in READ_LENS if not args.fast or n <= 2 * sizes.segment]
        ids = run.store.ids("test")
        record["nats_by_memory"] = read_with_memories(run.net, ids, sizes, lengths)
    return record | measure_best_length(run.net, run.store, how.row, sizes) | run.describe()


def count_tokens(options: common.Options) -> int:
    """Return the number of tokens that training computes, those read again included."""
    length = options["data.tgt_len"] + options["data.ext_len"]
    return length * options["data.batch_size"] * options["trainer.max_steps"]


if __name__ == "__main__":
    main()
