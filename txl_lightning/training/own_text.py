"""Defaults of fit on a text of one's own: a recipe by size, within 2 % of the best measured.

docs/engineering-log.md has the table ("Which settings make the best model"). Options and configs
override each part; a config that sets a network or an optimizer has a recipe of its own.
"""

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jsonargparse import Namespace

from ..command_line import Parser
from ..data.archives import UNPACKED
from ..data.text_files import NOT_UTF8, find_binary, list_files
from ..errors import flatten_settings, prefix_errors, require_at_least
from ..files import configs_folder, load_yaml
from ..model import has_bfloat16_units
from .callbacks.save_run import print_once
from .options import TRAINER_DEFAULTS, load_configs, parse

MINUTES = 5.0  # of training; measured with 2, 5 and 30
WIDE_MINUTES = 15  # from which the network is WIDE
WIDE = 192  # its d_model
SMALLEST = 50_000  # bytes of the shortest text with a recipe; shorter ones were not measured


class Size(NamedTuple):
    """Recipe of texts up to a size."""

    largest: float  # in bytes; measured up to 70 MB
    n_token: int  # subwords
    token_bytes: float  # of a subword, about
    dropout: float
    wide_dropout: float | None  # of the wide network; None if the text is too short for it


SIZES = (
    Size(500_000, 1024, 2.6, 0.3, None),
    Size(3_000_000, 2048, 2.9, 0.1, 0.2),
    Size(math.inf, 4096, 3.4, 0.0, 0.0),
)
PASSES = 30  # most passes over the text: on 0.1 MB, 74 were worse than 30
SUBWORDS = ("bpe", "unigram")
RESTART_LEN = 512  # memories begin anew at a random place in each so many tokens
N_VALIDATION = 10  # validations of a run
VALIDATION_LEN = 50  # batches of each
STEPS = {"max_steps": TRAINER_DEFAULTS["max_steps"], "max_time": None, "fast_dev_run": False}
"""Options of the Trainer, with their defaults; with another value, minutes are not planned."""


def adopt_recipe(parser: Parser, words: list[str], settings: Namespace) -> Namespace:
    """Return the settings of fit with a recipe's as defaults, and print what was chosen."""
    with prefix_errors("data"):
        require_at_least(settings.data, batch_size=1, tgt_len=1)
    n_byte = count_bytes(settings.data)
    if n_byte < SMALLEST or not needs_recipe(words, settings):
        return settings
    is_planned = all(settings.trainer[name] == default for name, default in STEPS.items())
    is_planned &= not any(word.startswith("--trainer.max_steps") for word in words)
    size = next(each for each in SIZES if n_byte <= each.largest)
    minutes = (settings.plan.minutes or MINUTES) if is_planned else 0
    recipe = choose_recipe(size, settings.data.vocab, minutes)
    recipe |= plan_training(size, n_byte, settings.data) if is_planned else {}
    if is_bfloat16_faster(settings.trainer.accelerator):
        recipe["trainer.precision"] = "bf16-mixed"
    parser.set_defaults(recipe)
    settings = parse(parser, words)
    print_once(describe_recipe(n_byte, settings))
    return settings


def needs_recipe(words: list[str], settings: Namespace) -> bool:
    """Return True if no config, class or checkpoint gives a network or an optimizer."""
    if settings.ckpt_path not in (None, "last") or "class_path" in settings.model.net:
        return False
    models = [config.get("model") or {} for config in load_configs(words)]
    parts = {"net", "optim", "class_path"}
    return not any(isinstance(model, str) or parts & model.keys() for model in models)


def choose_recipe(size: Size, vocab: str | None, minutes: float) -> dict[str, Any]:
    """Return settings for a size of texts; of subwords, if there is no other vocabulary."""
    recipe = load_shared() | {"data.restart_len": RESTART_LEN, "model.net.dropout": size.dropout}
    if minutes >= WIDE_MINUTES and size.wide_dropout is not None:
        recipe |= {"model.net.d_model": WIDE, "model.net.dropout": size.wide_dropout}
    if vocab in (None, *SUBWORDS):
        recipe |= {"data.vocab": vocab or "bpe", "data.subwords.n_token": size.n_token}
    return recipe


def plan_training(size: Size, n_byte: int, data: Namespace) -> dict[str, Any]:
    """Return settings that limit the minutes, the passes and the validations."""
    token_bytes = size.token_bytes if data.vocab in (None, *SUBWORDS) else 1
    tokens = data.split[0] * n_byte / token_bytes
    steps = max(int(PASSES * tokens / (data.batch_size * data.tgt_len)), N_VALIDATION)
    return {
        "plan.minutes": MINUTES,
        "trainer.max_steps": steps,
        "trainer.val_check_interval": steps // N_VALIDATION,
        "trainer.limit_val_batches": VALIDATION_LEN,
    }


def load_shared() -> dict[str, Any]:
    """Return what all recipes share: the network and the optimizer of the quickstart."""
    config = load_yaml((configs_folder() / "quickstart.yaml").read_text())
    clip = {"gradient_clip_val": config["trainer"]["gradient_clip_val"]}
    return flatten_settings({"model": config["model"], "trainer": clip})


def is_bfloat16_faster(accelerator: str) -> bool:
    if accelerator != "cpu" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return has_bfloat16_units(torch.device("cpu"))


def count_bytes(data: Namespace) -> int:
    """Return the size of the files of a text that are read, packed ones as they are; 0 for none."""
    data_dir = Path(data.data_dir or os.environ.get("TXL_DATA") or "data").expanduser()
    read = (None, NOT_UTF8) if data.vocab == "bytes" else (None,)
    n_byte = 0
    for path in map(Path, [data.path] if isinstance(data.path, str) else data.path or ()):
        path = path.expanduser()
        # Preparing the text names a file that cannot be read.
        with suppress(OSError):
            files = [path] if path.is_file() else []
            if path.is_dir():
                files = filter(Path.is_file, list_files(path, data_dir).values())
                files = [
                    file for file in files if file.suffix in UNPACKED or find_binary(file) in read
                ]
            n_byte += sum(file.stat().st_size for file in files)
    return n_byte


def describe_recipe(n_byte: int, settings: Namespace) -> str:
    data = settings.data
    net = settings.model.net
    minutes = settings.plan.minutes
    vocab = data.vocab
    if vocab in SUBWORDS:
        vocab = f"{vocab} of {data.subwords.n_token:,} subwords"
    limit = f"{minutes:g} min, at most " if minutes else ""
    steps = settings.trainer.max_steps
    passes = settings.trainer.max_epochs
    duration = limit + (f"{steps:,} steps" if steps >= 0 else f"passes over the text: {passes:,}")
    sizes = f"{net.n_layer} layers of {net.d_model}, dropout {net.dropout:g}"
    precision = settings.trainer.precision or "32-true"
    chosen = f"{vocab}; {sizes}; {settings.model.optim.name}; {precision}"
    if data.restart_len:
        chosen += f"; memories restart once in every {data.restart_len} tokens"
    return f"recipe for a text of {n_byte / 1e6:.1f} MB: {chosen}; {duration}"
