"""Train as a recorded curve of the original code did, and print how far the two are apart.

    python experiments/reproduction/golden_curve.py FILE [--text input.txt]

FILE is an .npz: `info` (JSON: steps, lengths, optimiser, clip, the model's keywords), the initial
weights `init.*` and the `loss` of each step. The text is Tiny Shakespeare; its first 90 % train.
Everything runs through the real LanguageModel, CorpusDataModule and Trainer, in float64.
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
from txl_lightning.evaluation.metrics import MeanNats


class Record(Callback):
    """Keep every training loss, and count the nats of validation, as they are."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.validation = MeanNats()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(outputs["loss"].item())

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Segment, *_: Any
    ) -> None:
        self.validation.update(outputs, batch.targets_BL)


def compare(curve: Any, text: str | None, data_dir: str) -> dict[str, float]:
    """Train, validate, and measure the differences from a loaded .npz."""
    info = json.loads(str(curve["info"]))
    record, data = Record(), corpus(info, text, data_dir)
    model = language_model(curve, info)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_steps=info["steps"],
            max_epochs=-1,
            precision="64-true",
            gradient_clip_val=info["clip_global_norm"],
            limit_val_batches=0,
            callbacks=[record],
            **quiet(folder),
        )
        trainer.fit(model, datamodule=data)
        options = {"precision": "64-true", "callbacks": [record], **quiet(folder)}
        Trainer(**options).validate(model, datamodule=data, verbose=False)
    nats = record.validation.compute().item()
    return {
        "steps": len(record.losses),
        "largest_loss_difference": float(np.abs(np.array(record.losses) - curve["loss"]).max()),
        "val_nats": nats,
        "val_nats_difference": abs(nats - info["val_nats"]),
        "val_tokens": int(record.validation.count),
    }


def corpus(info: dict, text: str | None, data_dir: str) -> CorpusDataModule:
    """The characters that the curve was trained on."""
    return CorpusDataModule(
        corpus="tiny_shakespeare",
        path=text,
        vocab="characters",
        split=(0.9, 0.1, 0.0),
        tgt_len=info["tgt_len"],
        batch_size=info["batch_size"],
        data_dir=data_dir,
    )


def language_model(curve: Any, info: dict) -> LanguageModel:
    """The curve's initial weights in a LanguageModel."""
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
    """The schedule that the curve describes in words.

    Raises:
        ValueError: it is another one than those this script can repeat.
    """
    words = {
        f"cosine to 0 over {info['steps']} steps, no warm-up": "cosine",
        "constant": "constant",
    }
    for start, name in words.items():
        if info["schedule"].startswith(start):
            return name
    raise ValueError(f"schedule: {info['schedule']!r} cannot be repeated; only {list(words)}")


def quiet(folder: str) -> dict[str, Any]:
    """A Trainer on the CPU that writes nothing."""
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = dict.fromkeys(silent, False)
    return options | {
        "accelerator": "cpu",
        "default_root_dir": folder,
        "use_distributed_sampler": False,
    }


def main() -> None:
    """Print the comparison as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the recorded curve, .npz")
    parser.add_argument("--text", help="Tiny Shakespeare; left out, the corpus under --data_dir")
    parser.add_argument("--data_dir", default="data", help="the folder where data lives")
    arguments = parser.parse_args()
    silence_warnings()
    with np.load(arguments.file) as curve:
        print(json.dumps(compare(curve, arguments.text, arguments.data_dir), indent=1))


if __name__ == "__main__":
    main()
