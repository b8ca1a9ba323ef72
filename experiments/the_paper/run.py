"""Do the paper's Tables 6 and 7 hold for a small network?"""

from argparse import Namespace
from functools import partial
from typing import Any

from experiments import common
from experiments.how_far_back.passages import score_copies
from experiments.results import load_records
from experiments.the_paper import training
from experiments.the_paper.rows import KINDS, Row

GAP = 64  # tokens between a passage and itself


def main() -> None:
    args = common.parse_args(__file__, __doc__, (11, 12, 13, 14, 15), kinds=KINDS)
    for row in dict.fromkeys(KINDS[kind].row for kind in args.only):
        common.measure_once(args, f"rate {row.name}", choose_rate, row)
    common.measure_kinds(args, measure)


def choose_rate(args: Namespace, row: Row) -> dict[str, Any]:
    train_with = partial(training.train_at_rate, args, row)
    return common.choose_rate(row.name, train_with, training.FIRST_RATE, args.fast)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return the perplexities of a kind, read as trained and with the best attention length."""
    how = KINDS[kind]
    sizes = training.pick_sizes(args)
    rate = load_records(args.out)[f"rate {how.row.name}"]["rate"]
    run = training.train_kind(args, kind, seed, rate)
    length = training.segment_len(how.row, sizes)
    lengths = {"mem_len": run.net.config.mem_len, "tgt_len": length}
    passages = score_copies(run.net, run.store.ids("test"), GAP, seed, lengths)
    test_PT = training.cut_pieces(run.store, "test", sizes)
    record = {
        "kind": kind,
        "seed": seed,
        "rate": rate,
        "saved_on_copy": passages["control"] - passages["copy"],
        "segments": training.score_segments(run.net, test_PT, how.row, sizes),
        # That training computes, those read again included.
        "tokens": length * run.options["data.batch_size"] * run.options["trainer.max_steps"],
    }
    best = training.measure_best_length(run.net, run.store, how.row, sizes)
    return record | best | run.describe()


if __name__ == "__main__":
    main()
