"""Checkpoints among the artifacts of W&B.

Not in training/, whose import takes seconds: the commands that measure need no Lightning.
"""

from pathlib import Path

from ..errors import CheckpointError
from ..files import create_folder


def fetch_artifact(path: Path) -> Path:
    """Return the folder with the files of an artifact, wandb:ENTITY/PROJECT/NAME:ALIAS.

    It is in W&B's cache, named by the digest of the files, which are fetched once and verified.
    CheckpointError if that is impossible.
    """
    try:
        import wandb

        artifact = wandb.Api().artifact(str(path).removeprefix("wandb:"))
        folder = wandb.env.get_cache_dir() / "txl_lightning" / artifact.digest

        def download(part: Path) -> None:
            artifact.download(str(part), skip_cache=True)
            artifact.verify(str(part))

        create_folder(folder, download)
        return folder
    # W&B and its connection raise errors of many classes.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(f"ckpt_path: {path}: cannot be fetched ({reason})") from error
