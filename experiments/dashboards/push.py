"""Is it learning, is it fast, does memory help, which run is best?

    python experiments/dashboards/push.py --entity NAME [--project txl_lightning] [--json]

Saves a workspace and a report that answer this of a W&B project's runs, and prints where they are;
each time they are new ones. With --json they are printed instead, and no network is needed.
Wants the extra "dashboards" and, to save, a key (wandb login).
"""

import argparse
import json
import os
import sys
from typing import Any, NoReturn


def main() -> None:
    """Build both; save or print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entity", required=True, help="who owns the project: a user or team")
    parser.add_argument("--project", default="txl_lightning")
    parser.add_argument("--json", action="store_true", help="print what would be saved")
    given = parser.parse_args()
    # By itself W&B goes on trying after its own time limit, and no process ends before it does.
    os.environ.setdefault("WANDB_X_GRAPHQL_RETRY_MAX", "2")
    both = build_boards(given.entity, given.project)
    if given.json:
        print(json.dumps({name: to_json_spec(board) for name, board in both.items()}, indent=1))
    else:
        save(both)


def build_boards(entity: str, project: str) -> dict[str, Any]:
    """The report and the workspace."""
    try:
        from boards import report, workspace
    except ModuleNotFoundError as error:
        if error.name != "wandb_workspaces":
            raise
        exit_with_error("wandb-workspaces is missing: pip install 'txl-lightning[dashboards]'")
    # The report comes first: to save it makes the project, if there is none.
    return {"report": report(entity, project), "workspace": workspace(entity, project)}


def to_json_spec(board: Any) -> dict[str, Any]:
    """The JSON that W&B is sent."""
    return json.loads(board._to_model().model_dump_json(by_alias=True, exclude_none=True))


def save(both: dict[str, Any]) -> None:
    """Save each and say where it is."""
    for name, board in both.items():
        try:
            address = board.save().url
        # Without a key, a server or the right to write, W&B's two packages raise all kinds.
        except Exception as error:
            reason = str(error).partition("\n")[0]
            exit_with_error(f"the {name} was not saved: {reason}")
        print(f"{name}: {address}")


def exit_with_error(reason: str) -> NoReturn:
    """End as with any wrong setting."""
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
