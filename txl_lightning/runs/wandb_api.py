"""W&B apart from training: checkpoints among its artifacts, results of runs that are over.

Not in training/, whose import takes seconds: the commands that measure need no Lightning.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, print_notice, require
from ..files import create_folder

PREFIX = "wandb:"


def fetch_artifact(path: str | Path) -> Path:
    """Return a path; for wandb:ENTITY/PROJECT/NAME:ALIAS, the folder with the artifact's files.

    The folder is in W&B's cache, named by the digest of its files, which are fetched once and
    verified. CheckpointError if that is impossible.
    """
    if not str(path).startswith(PREFIX):
        return Path(path)
    with explain_errors(CheckpointError, f"ckpt_path: {path}: cannot be fetched"):
        import wandb

        artifact = wandb.Api().artifact(str(path).removeprefix(PREFIX))
        folder = wandb.env.get_cache_dir() / "txl_lightning" / artifact.digest

        def download(part: Path) -> None:
            artifact.download(str(part), skip_cache=True)
            artifact.verify(str(part))

        create_folder(folder, download)
    return folder


def find_wandb_run(checkpoint: Mapping[str, Any]) -> dict[str, str | None]:
    """Return id, project and entity of the W&B run that wrote a checkpoint; ValueError if none."""
    state = checkpoint.get("callbacks", {}).get("WandbRun", {})
    expected = "a checkpoint of a run with --trainer.logger WandbLogger"
    require(state.get("run_id") is not None, "wandb", "true", expected)
    return state


def add_evaluation(checkpoint: Mapping[str, Any], record: Mapping[str, Any], folder: Path) -> None:
    """Add the result of an evaluation to the summary of the W&B run that wrote the checkpoint.

    Offline, W&B's files are in `folder`, for wandb sync, which makes a run of their own of them: of
    the trained one, it would replace the summary by theirs.
    """
    state = find_wandb_run(checkpoint)
    text, split = Path(record["text"]).name, record["split"]
    key = f"evaluate/{text}/{split}/{record['protocol']}"
    names = [name for name in record["interval"] if name in record]
    names += ["tokens_scored", "lengths", "weights", "adaptation"]
    values = {name: record[name] for name in names}
    # Offline, a run knows no entity.
    place = {name: state.get(name) or None for name in ("project", "entity")}
    with explain_errors(ValueError, "wandb: the result cannot be added"):
        import wandb

        # Nothing of this process but its result belongs to that run.
        quiet = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off")
        how: dict[str, Any] = {"id": state["run_id"], "resume": "must"}
        if wandb.setup().settings.mode == "offline":
            how = {"group": state["run_id"], "job_type": "evaluate"}
        with wandb.init(**place, **how, dir=folder, settings=quiet) as run:
            run.summary.update({f"{key}/{name}": value for name, value in values.items()})
        if run.offline:
            print_notice(f"offline: wandb sync {Path(run.dir).parent} adds a run of its own")


@contextmanager
def explain_errors(refusal: type[ValueError], problem: str) -> Iterator[None]:
    """Raise what W&B and its connection raise as an error of one line."""
    try:
        yield
    # W&B raises errors of many classes.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise refusal(f"{problem} ({reason})") from error
