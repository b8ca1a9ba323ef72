"""The door: python -m txl_lightning VERB. Exit codes: 0 done, 2 wrong settings, 3 wrong data."""

import logging
import os
import sys
import warnings
from importlib import import_module

VERBS = {
    "fit": ("training.cli", "TxlCLI"),
    "validate": ("training.cli", "TxlCLI"),
    "test": ("training.cli", "TxlCLI"),
    "predict": ("training.cli", "TxlCLI"),
    "generate": ("generation", "generate_verb"),
}

HELP = """usage: python -m txl_lightning VERB [options]

  fit       train, and validate on the way
  validate  measure a checkpoint on the validation text
  test      measure a checkpoint on the test text
  predict   write the nats of every token of the test text
  generate  continue a prompt

VERB --help lists its options. Exit codes: 0 done, 2 wrong settings, 3 wrong data."""


def main() -> None:
    """Run the verb; a user's mistake is one line and an exit code (TXL_DEBUG=1: a traceback)."""
    from .data import DataError

    try:
        run(sys.argv[1:])
    except ValueError as error:
        if os.environ.get("TXL_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3 if isinstance(error, DataError) else 2)


def run(arguments: list[str]) -> None:
    """Call the verb that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP)
        return
    verb, *rest = arguments
    if verb not in VERBS:
        raise ValueError(f"{verb}: unknown verb; it must be one of {', '.join(VERBS)}")
    quieten()
    module, name = VERBS[verb]
    function = getattr(import_module(f".{module}", __package__), name)
    if name == "TxlCLI":
        function()
    else:
        from jsonargparse import auto_cli

        auto_cli(function, args=rest, as_positional=False)


def quieten() -> None:
    """Leave out what Lightning says to its own developers, or about loaders that are not ours."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric.utilities.seed").setLevel(logging.WARNING)
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for message in (".*LeafSpec.*", ".*dirpath has changed.*", ".*infer the batch indices.*"):
        warnings.filterwarnings("ignore", message=message)


if __name__ == "__main__":
    main()
