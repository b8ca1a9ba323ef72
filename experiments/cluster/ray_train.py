"""Train on the workers of a Ray cluster, and report each last.ckpt to Ray, which resumes from it.

python -m experiments.cluster.ray_train --workers 2 --storage s3://BUCKET/ray --config quickstart

Other options are those of fit. txl-lightning must be installed on every machine. Ray's own
RayTrainReportCallback reports at the end of an epoch, and a run here is one endless epoch.
"""

import argparse
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import ray.train
from ray.train.lightning import RayDDPStrategy
from ray.train.torch import TorchTrainer

from txl_lightning.__main__ import run
from txl_lightning.checkpoints.mirror import FILES
from txl_lightning.runs.folder import LAST

EXPERIMENTS = Path(__file__).parents[1]
OPTIONS = [
    *("--allow_imports=experiments", "--allow_imports=ray"),
    '--trainer.strategy={"class_path": "experiments.cluster.ray_train.ReportingStrategy"}',
    '--trainer.plugins=[{"class_path": "ray.train.lightning.RayLightningEnvironment"}]',
    *("--trainer.devices=auto", "--resume=auto"),
]


class ReportingStrategy(RayDDPStrategy):
    """Ray's DDP; all workers report a last.ckpt together, after the first one has written it."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options)
        path = Path(filepath)
        if path.name == LAST:
            with TemporaryDirectory() as copy:
                copied = copy_run(path.parents[1], Path(copy)) if self.is_global_zero else None
                ray.train.report({"step": checkpoint["global_step"]}, checkpoint=copied)


def copy_run(folder: Path, copy: Path) -> ray.train.Checkpoint:
    for name in FILES:
        if (folder / name).is_file():
            (copy / name).parent.mkdir(exist_ok=True)
            shutil.copy(folder / name, copy / name)
    return ray.train.Checkpoint.from_directory(copy)


def train(options: list[str]) -> None:
    """Train on one worker, in a folder of its own, from what was reported last."""
    with TemporaryDirectory() as root:
        if checkpoint := ray.train.get_checkpoint():
            checkpoint.to_directory(Path(root, "version_0"))
        run(["fit", *options, *OPTIONS, f"--trainer.default_root_dir={root}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="one GPU for each worker")
    parser.add_argument("--storage", required=True, help="folder or URL of all machines")
    parser.add_argument("--name", default="run", help="a run of this name is continued")
    parser.add_argument("--retries", type=int, default=3, help="after a worker has died")
    settings, options = parser.parse_known_args()
    # This file must be importable by the workers.
    ray.init(runtime_env={"py_modules": [str(EXPERIMENTS)]})
    trainer = TorchTrainer(
        train,
        train_loop_config=options,
        scaling_config=ray.train.ScalingConfig(num_workers=settings.workers, use_gpu=settings.gpu),
        run_config=ray.train.RunConfig(
            name=settings.name,
            storage_path=settings.storage,
            failure_config=ray.train.FailureConfig(max_failures=settings.retries),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    print(f"step {result.metrics['step']}: {result.checkpoint.path}")


if __name__ == "__main__":
    main()
