"""How much slower is a sliding window than memory? (Table 9)

    python -m experiments.sliding_window.run [--seeds 1 2 3] [--fast]

The network of configs/paper/enwik8_base.yaml with random weights. A seed is a repetition. It needs
an idle machine; records tell whether other work disturbed it.
"""

from argparse import Namespace
from typing import Any

from experiments import common
from experiments.speed.window import compare_with_window, is_disturbed
from txl_lightning.files import load_yaml
from txl_lightning.model.contract import make_config

NETWORK = common.REPOSITORY / "configs" / "paper" / "enwik8_base.yaml"
SMALL = common.REPOSITORY / "configs" / "smoke.yaml"
SIZES = {"lengths": [800, 1800, 2800, 3800], "tgt_len": 128, "segments": 20, "positions": 3}
FAST = {"lengths": [16, 32], "tgt_len": 8, "segments": 2, "positions": 1}


def main() -> None:
    """Measure once for each seed."""
    args = common.parse_args(__file__, __doc__, vary="nothing: they are repetitions")
    for seed in args.seeds:
        common.measure_once(args, f"speed/{seed}", measure, seed)


def measure(args: Namespace, seed: int) -> dict[str, Any]:
    network, sizes = (SMALL, FAST) if args.fast else (NETWORK, SIZES)
    model = make_config(load_yaml(network.read_text())["model"]["net"]).build().eval()
    rows = compare_with_window(model, **sizes)
    return {"seed": seed, "rows": rows, "disturbed": is_disturbed(rows)}


if __name__ == "__main__":
    main()
