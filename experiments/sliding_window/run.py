"""How much slower is a sliding window than memory? (Table 9)

    python -m experiments.sliding_window.run [--seeds 1 2 3] [--fast]

The command `speed` with the network of configs/paper/enwik8_base.yaml and random weights. A seed is
a repetition. It needs an idle machine; records tell whether other work disturbed it.
"""

import json
from argparse import Namespace
from typing import Any

from experiments import common
from txl_lightning.__main__ import run
from txl_lightning.analysis.timing import is_disturbed

NETWORK = common.REPOSITORY / "configs" / "paper" / "enwik8_base.yaml"
SMALL = common.REPOSITORY / "configs" / "smoke.yaml"
FAST = ["--lengths", "16", "32", "--tgt_len=8", "--segments=2", "--positions=1", "--tokens=4"]


def main() -> None:
    """Measure once for each seed."""
    args = common.parse_args(__file__, __doc__, vary="nothing: they are repetitions")
    for seed in args.seeds:
        common.measure_once(args, f"speed/{seed}", measure, seed)


def measure(args: Namespace, seed: int) -> dict[str, Any]:
    out = args.runs / f"repetition{seed}"
    network, sizes = (SMALL, FAST) if args.fast else (NETWORK, ["--tokens=20"])
    run(["speed", str(network), *sizes, "--batches", "1", f"--out={out}"])
    rows = json.loads((out / "window.json").read_text())["rows"]
    return {"seed": seed, "rows": rows, "disturbed": is_disturbed(rows)}


if __name__ == "__main__":
    main()
