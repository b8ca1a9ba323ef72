"""How much slower is a sliding window? (Table 9)

    python -m experiments.sliding_window.run [--seeds 1 2 3] [--fast]

The speed verb with the network of configs/paper/enwik8_base.yaml, whose weights are random. A seed
is a repetition. Nothing else should run on the machine: the verb warns if something did.
"""

import json

from experiments.common import REPOSITORY, load_records, parse_options, save_record
from txl_lightning.__main__ import run
from txl_lightning.analysis.speed import is_disturbed

NETWORK = REPOSITORY / "configs" / "paper" / "enwik8_base.yaml"
SMALL = REPOSITORY / "configs" / "smoke.yaml"
FAST = ["--lengths", "16", "32", "--tgt_len=8", "--segments=2", "--positions=1", "--tokens=4"]


def main() -> None:
    """Measure as often as there are seeds."""
    given = parse_options(__file__, __doc__)
    for seed in given.seeds:
        if (name := f"speed/{seed}") not in load_records(given.out):
            out = given.runs / f"repetition{seed}"
            sizes = FAST if given.fast else ["--tokens=20"]
            network = str(SMALL if given.fast else NETWORK)
            run(["speed", network, *sizes, "--batches", "1", f"--out={out}"])
            rows = json.loads((out / "window.json").read_text())["rows"]
            save_record(given, name, seed=seed, rows=rows, disturbed=is_disturbed(rows))


if __name__ == "__main__":
    main()
