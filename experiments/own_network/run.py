"""What do other memories reach, an LSTM's and recurrent tokens, at equal parameters and minutes?

    python -m experiments.own_network.run [--seeds 1 2 3] [--only KIND ...] [--fast]

The networks of this folder beside the Transformer-XL, named as those of a user's package. "text":
the quickstart, in 2.5 minutes; "recall": which value was paired with this key, read in segments
that do not contain the pair, in one minute. The sizes give equal numbers of parameters; the
settings are those of the configs, with a usual learning rate for the LSTM; none is tuned.
"""

from argparse import Namespace
from typing import Any

from experiments import common
from txl_lightning.errors import flatten_settings
from txl_lightning.files import load_yaml

CONFIGS = {"text": "configs/quickstart.yaml", "recall": "configs/tasks/recall.yaml"}
STEPS = {"trainer.max_steps": 20_000, "trainer.val_check_interval": 5000}
PLANS = {"text": {"plan.minutes": 2.5}, "recall": {"plan.minutes": 1} | STEPS}
ADAM = {"model.optim.name": "adamw", "model.optim.lr": 3e-3, "model.optim.muon_lr": None}
LSTM = {"model.net.class_path": "experiments.own_network.lstm.LSTMConfig"} | ADAM
TOKENS = {"model.net.class_path": "experiments.own_network.memory_tokens.MemoryTokensConfig"}
SMALL = {"model.net.n_layer": 2, "model.net.d_model": 64, "model.net.part_len": 8}
KINDS = {
    "text-xl": {},
    "text-lstm": LSTM | {"model.net.width": 192},
    "text-tokens": TOKENS | {"model.net.part_len": 16},
    "recall-xl": {},
    "recall-lstm": LSTM | {"model.net.width": 82},
    "recall-tokens": TOKENS | SMALL,
}
FAST = common.FAST | {"plan.minutes": None, "data.vocab": None, "trainer.limit_val_batches": 8}
ALLOW = {"allow_imports": "experiments"}


def main() -> None:
    """Train each network with each seed on both tasks."""
    common.measure_kinds(common.parse_args(__file__, __doc__, kinds=KINDS), measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte of the whole test text, or the share of right answers."""
    options = choose_options(kind) | (FAST if args.fast else {})
    run = common.train(args, f"{kind} {seed}", seed, options)
    fields = {"kind": kind, "seed": seed, "steps": run.load_curve("val/nats")["steps"][-1] + 1}
    if kind.startswith("recall"):
        fields |= run.describe("val/answer_accuracy")
        return fields | {"accuracy": fields["curve"]["val/answer_accuracy"][-1]}
    how = {"split": "test", "batch_size": 16, "tgt_len": 64} | ALLOW
    test = run.evaluate(how | ({"max_tokens": 2000} if args.fast else {}))
    return fields | run.describe("val/bits_per_byte") | {"bits_per_byte": test["bits_per_byte"]}


def choose_options(kind: str) -> dict[str, Any]:
    """Return the settings of a config; without its network, if the kind has another one."""
    task, own = kind.split("-")[0], KINDS[kind]
    config = load_yaml((common.REPOSITORY / CONFIGS[task]).read_text())
    if own:
        del config["model"]["net"]
    return flatten_settings(config) | PLANS[task] | own | ALLOW


if __name__ == "__main__":
    main()
