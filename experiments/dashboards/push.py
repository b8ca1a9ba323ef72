"""Is it learning, is it fast, does memory help, which run is best?

    python -m experiments.dashboards.push --entity NAME [--project txl_lightning] [--json]

Saves a workspace and a report that answer this of a W&B project's runs, and prints their addresses;
each call makes new ones. With --json they are printed instead, for any NAME, without a network.
Needs the extra "dashboards" and, to save, a key (wandb login).
"""

import argparse
import json
import os
import sys
from typing import Any, NoReturn


def main() -> None:
    """Build both; save or print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--entity", required=True, help="owner, a user or team; any name with --json"
    )
    parser.add_argument("--project", default="txl_lightning")
    parser.add_argument("--json", action="store_true", help="print them, without a network")
    args = parser.parse_args()
    # By default W&B retries beyond its own time limit, and no process ends before that.
    os.environ.setdefault("WANDB_X_GRAPHQL_RETRY_MAX", "2")
    try:
        from experiments.dashboards.boards import build_report, build_workspace
    except ModuleNotFoundError as error:
        if error.name != "wandb_workspaces":
            raise
        exit_with_error("wandb-workspaces is missing: pip install 'txl-lightning[dashboards]'")
    # The report comes first: saving it makes the project, if there is none.
    builders = {"report": build_report, "workspace": build_workspace}
    boards = {name: build(args.entity, args.project) for name, build in builders.items()}
    if args.json:
        print(json.dumps({name: to_json_spec(board) for name, board in boards.items()}, indent=1))
        return
    for name, board in boards.items():
        try:
            print(f"{name}: {board.save().url}")
        # Without a key, a server or the right to write, W&B's two packages raise all kinds.
        except Exception as error:
            reason = str(error).partition("\n")[0]
            exit_with_error(f"the {name} was not saved: {reason}")


def to_json_spec(board: Any) -> dict[str, Any]:
    """Return the JSON that W&B is sent."""
    return json.loads(board._to_model().model_dump_json(by_alias=True, exclude_none=True))


def exit_with_error(reason: str) -> NoReturn:
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
