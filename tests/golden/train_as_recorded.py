"""Train as a recorded curve of the original code did, and print the differences.

    python -m tests.golden.train_as_recorded [FILE] [--steps N]

FILE, described in README.md, has the initial weights, the text, and the loss of each
step. Everything runs through the real LanguageModel, CorpusDataModule and Trainer, in float64. The
validation text is scored after the last step.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig
from txl_lightning.convert import load_original
from txl_lightning.convert.original import config_from_original
from txl_lightning.data.stream import Segment
from txl_lightning.errors import silence_warnings
from txl_lightning.machine import describe_environment
from txl_lightning.training.segments import MeanNats

CURVE = Path(__file__).with_name("training_curve.npz")
TRAINER = {
    "accelerator": "cpu",
    "precision": "64-true",
    "use_distributed_sampler": False,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Record(Callback):
    """Keep the losses of the first `steps` steps, and sum the nats of validation."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.losses = []
        self.validation = MeanNats(torch.device("cpu"))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(outputs["loss"].item())
        # max_steps would end the schedule, too.
        trainer.should_stop = len(self.losses) == self.steps

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Segment, *_: Any
    ) -> None:
        self.validation.update(outputs, batch.targets_BL)


def compare(curve: Any, steps: int | None = None) -> dict[str, float]:
    """Return the differences from a loaded .npz over its first `steps`; validate after the last."""
    info = json.loads(str(curve["info"]))
    record = Record(steps or info["steps"])
    model = language_model(curve, info)
    with tempfile.TemporaryDirectory() as folder:
        data = load_corpus(curve, info, Path(folder))
        options = TRAINER | {"default_root_dir": folder, "callbacks": [record]}
        trainer = Trainer(
            max_steps=info["steps"],
            max_epochs=-1,
            gradient_clip_val=info["clip_global_norm"],
            limit_val_batches=0,
            **options,
        )
        trainer.fit(model, datamodule=data)
        differences = np.array(record.losses) - curve["loss"][: record.steps]
        result = {"steps": len(record.losses), "largest_loss_difference": abs(differences).max()}
        if record.steps < info["steps"]:
            return result
        Trainer(**options).validate(model, datamodule=data, verbose=False)
    nats = record.validation.compute().item()
    count = int(record.validation.count)
    difference = abs(nats - info["val_nats"])
    return result | {"val_nats": nats, "val_nats_difference": difference, "val_tokens": count}


def load_corpus(curve: Any, info: dict, folder: Path) -> CorpusDataModule:
    """Return the recorded text, written to `folder`."""
    paths = [folder / f"{split}.txt" for split in ("train", "val", "test")]
    for path in paths:
        path.write_bytes(curve[f"text.{path.stem}"].tobytes())
    sizes = {name: info[name] for name in ("tgt_len", "batch_size")}
    return CorpusDataModule(path=paths, vocab="characters", data_dir=folder, **sizes)


def language_model(curve: Any, info: dict) -> LanguageModel:
    """Return a LanguageModel with the curve's initial weights."""
    optim = OptimConfig(
        name=info["optimizer"].lower(),
        betas=tuple(info["betas"]),
        lr=info["lr"],
        schedule=schedule(info),
    )
    args = info["model"] | {"mem_len": info["mem_len"]}
    model = LanguageModel(config_from_original(args), optim, info["eval_mem_len"]).double()
    names = [name for name in curve.files if name.startswith("init.")]
    weights = {name[len("init.") :]: torch.from_numpy(curve[name]).double() for name in names}
    model.net.load_state_dict(load_original(weights, args).state_dict())
    return model


def schedule(info: dict) -> str:
    """Return the schedule that the curve describes in words.

    Raises:
        ValueError: it is not one that this script can repeat.
    """
    cosine = f"cosine to 0 over {info['steps']} steps, no warm-up"
    names = {cosine: "cosine", "constant": "constant"}
    for start, name in names.items():
        if info["schedule"].startswith(start):
            return name
    raise ValueError(f"schedule: {info['schedule']!r} cannot be repeated; only {list(names)}")


def main() -> None:
    """Print the comparison as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=CURVE, help="the recorded curve")
    parser.add_argument("--steps", type=int, help="the first steps alone; by default all of them")
    args = parser.parse_args()
    silence_warnings()
    with np.load(args.file) as curve:
        result = compare(curve, args.steps)
    print(json.dumps(result | describe_environment(torch.device("cpu")), indent=1))


if __name__ == "__main__":
    main()
