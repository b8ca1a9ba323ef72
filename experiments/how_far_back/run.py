"""How far back does a network remember: values in a text of pairs, and passages of a text?

    python -m experiments.how_far_back.run [--seeds 1 2 3 4 5] [--only KIND ...] [--fast]

values.py and passages.py say what is trained and tested.
"""

from argparse import Namespace
from typing import Any

from experiments import common
from experiments.how_far_back import passages, values


def main() -> None:
    """Train and test each kind with each seed."""
    kinds = [*values.KINDS, *passages.KINDS]
    args = common.parse_args(__file__, __doc__, (1, 2, 3, 4, 5), kinds=kinds)
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    part = values if kind in values.KINDS else passages
    return part.measure(args, kind, seed)


if __name__ == "__main__":
    main()
