"""What does an LSTM reach beside a Transformer-XL, at equal parameters and minutes?

"text": the quickstart; "recall": which value was paired with this key.
"""

from argparse import Namespace
from typing import Any

from experiments import common, pace
from txl_lightning.errors import flatten_settings
from txl_lightning.files import load_yaml
from txl_lightning.imports import allow_imports

CONFIGS = {"text": "configs/quickstart.yaml", "recall": "configs/tasks/recall.yaml"}
MINUTES, N_TOKEN = {"text": 2.5, "recall": 1}, {"text": 4096, "recall": 10}
ADAM = {"model.optim.name": "adamw", "model.optim.lr": 3e-3, "model.optim.muon_lr": None}
LSTM = {"model.net.class_path": "experiments.other_networks.lstm.LSTMConfig"} | ADAM
KINDS = {
    "text-xl": {},
    "text-lstm": LSTM | {"model.net.width": 192},
    "recall-xl": {},
    "recall-lstm": LSTM | {"model.net.width": 82},
}
FAST = common.FAST | {"data.vocab": None, "trainer.limit_val_batches": 8}
ALLOW = {"allow_imports": "experiments"}


def main() -> None:
    args = common.parse_args(__file__, __doc__, vary="weights", kinds=KINDS)
    allow_imports(["experiments"])
    common.measure_once(args, "pace", time_kinds)
    common.measure_kinds(args, measure)


def time_kinds(args: Namespace) -> dict[str, Any]:
    """Return the seconds of a step by kind."""
    kinds = {kind: (choose_options(kind), N_TOKEN[kind.split("-")[0]]) for kind in KINDS}
    return pace.measure(args, kinds)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte of the whole test text, or the share of right answers."""
    minutes = MINUTES[kind.split("-")[0]]
    options = choose_options(kind) | pace.plan_minutes(args, "pace", kind, minutes)
    options |= FAST if args.fast else {}
    run = common.train(args, f"{kind} {seed}", seed, options)
    fields = {"kind": kind, "seed": seed, "minutes": minutes, "steps": options["trainer.max_steps"]}
    if kind.startswith("recall"):
        fields |= run.describe("val/answer_accuracy")
        return fields | {"accuracy": fields["curve"]["val/answer_accuracy"][-1]}
    test = common.score(args, run, split="test", batch_size=16, tgt_len=64, **ALLOW)
    return fields | run.describe("val/bits_per_byte") | {"bits_per_byte": test["bits_per_byte"]}


def choose_options(kind: str) -> dict[str, Any]:
    """Return the settings of a config; without its network, if the kind has another one."""
    task, own = kind.split("-")[0], KINDS[kind]
    config = load_yaml((common.REPOSITORY / CONFIGS[task]).read_text())
    if own:
        del config["model"]["net"]
    return flatten_settings(config) | {"plan.minutes": None} | own | ALLOW


if __name__ == "__main__":
    main()
