"""What does an LSTM reach beside a Transformer-XL, at equal parameters and minutes?"""

from argparse import Namespace
from typing import Any

from experiments import common, pace
from txl_lightning.files import load_yaml
from txl_lightning.imports import allow_imports

CONFIG = "configs/quickstart.yaml"
MINUTES = 2.5
KINDS = {
    "text-xl": {},
    "text-lstm": {
        "model.net.class_path": "experiments.other_networks.lstm.LSTMConfig",
        "model.net.width": 192,
        "model.optim.name": "adamw",
        "model.optim.lr": 3e-3,
        "model.optim.muon_lr": None,
    },
}
FAST = common.FAST | {"data.vocab": None, "trainer.limit_val_batches": 8}
ALLOW = {"allow_imports": "experiments"}


def main() -> None:
    args = common.parse_args(__file__, __doc__, (1, 2, 3, 4, 5), "weights", KINDS)
    allow_imports(["experiments"])
    common.measure_once(args, "pace", time_kinds)
    common.measure_kinds(args, measure)


def time_kinds(args: Namespace) -> dict[str, Any]:
    """Return the seconds of a step by kind."""
    options = {kind: choose_options(kind) for kind in KINDS}
    return pace.measure(args, {kind: (each, 4096) for kind, each in options.items()})


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte of the whole test text."""
    options = choose_options(kind) | pace.plan_minutes(args, "pace", kind, MINUTES)
    options |= FAST if args.fast else {}
    run = common.train(args, f"{kind} {seed}", seed, options)
    fields = {"kind": kind, "seed": seed, "minutes": MINUTES, "steps": options["trainer.max_steps"]}
    test = common.score(args, run, split="test", batch_size=16, tgt_len=64, **ALLOW)
    return fields | run.describe("val/bits_per_byte") | {"bits_per_byte": test["bits_per_byte"]}


def choose_options(kind: str) -> dict[str, Any]:
    """Return the settings of the config; without its network, if the kind has another one."""
    config = load_yaml((common.REPOSITORY / CONFIG).read_text())
    if KINDS[kind]:
        del config["model"]["net"]
    return common.flatten(config) | {"plan.minutes": None} | KINDS[kind] | ALLOW


if __name__ == "__main__":
    main()
