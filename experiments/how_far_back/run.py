"""How far back does a network know a passage of the text that comes again?"""

from experiments import common
from experiments.how_far_back import passages


def main() -> None:
    args = common.parse_args(__file__, __doc__, (1, 2, 3, 4, 5), kinds=passages.KINDS)
    common.measure_kinds(args, passages.measure)


if __name__ == "__main__":
    main()
