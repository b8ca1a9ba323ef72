"""When does a network learn to copy, and what does recurrence gain then? (Table 6, longer)

    python -m experiments.copying.run [--seeds 21 22 ... 30] [--only KIND ...] [--fast]

README.md has the setting. At each validation: nats saved on a passage of the validation text that
comes again after 64 tokens (how_far_back/passages.py).
"""

from argparse import Namespace
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from experiments import common
from experiments.copying import training
from experiments.copying.rows import ROWS
from experiments.how_far_back.passages import score_copies
from txl_lightning.imports import allow_imports

SEEDS = tuple(range(21, 31))
GAP = 64
VALIDATIONS = 28
METRIC = "val/saved_on_copy"


class CopyProbe(Callback):
    """Logs the nats saved on a passage that comes again; without memory, a window reads it."""

    def on_validation_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        net = module.net
        ids = trainer.datamodule.store.ids("val")
        how = {"mem_len": net.config.mem_len, "tgt_len": trainer.datamodule.config.tgt_len}
        if not how["mem_len"]:
            how |= {"tgt_len": training.STRIDE, "ext_len": how["tgt_len"] - training.STRIDE}
        nats = score_copies(net, ids, GAP, 0, how)
        module.log(METRIC, nats["control"] - nats["copy"])


def main() -> None:
    """Train each kind with each seed."""
    args = common.parse_args(__file__, __doc__, SEEDS, kinds=ROWS)
    allow_imports(["experiments"])
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return perplexities of the test text, and the nats saved on copies at each validation."""
    row = ROWS[kind]
    sizes = training.choose_sizes(args)
    options = training.make_fit_options(row, sizes, seed) | training.make_text_options(sizes)
    options |= common.plan_steps(sizes.steps, VALIDATIONS) | {"allow_imports": "experiments"}
    options["trainer.callbacks"] = [{"class_path": "experiments.copying.run.CopyProbe"}]
    run = common.train(args, f"{kind} {seed}", seed, options)
    net = run.net.to(args.device)
    test_PT = training.cut_pieces(run.store, "test", sizes)
    segments = training.score_segments(net, test_PT, row, sizes)
    fields = {"kind": kind, "seed": seed, "segments": segments}
    fields |= training.measure_best_length(net, run.store, row, sizes)
    return fields | run.describe(METRIC)


if __name__ == "__main__":
    main()
