"""Defaults of fit on a text of one's own: a recipe by size, within 2 % of the best measured.

experiments/README.md has the table ("The first result"). Options and configs override each part; a
config that sets a network or an optimizer has a recipe of its own.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import Namespace

from ..command_line import Parser, take_option
from ..errors import flatten_settings
from ..files import configs_folder, find_config, load_yaml
from ..model import has_bfloat16_units
from .callbacks.save_run import print_once
from .options import TRAINER_DEFAULTS, parse

MINUTES = 5
SMALLEST = 50_000
"""Bytes of the shortest text with a recipe; shorter ones were not measured."""
SIZES = ((500_000, 1024, 0.3), (3_000_000, 2048, 0.1), (None, 4096, 0.0))
"""Largest text in bytes, and the subwords and the dropout of its recipe; measured up to 70 MB."""
RESTART_LEN = 512
"""Memories begin anew at a random place in each so many tokens."""
PLAN = {
    "plan.minutes": MINUTES,
    "trainer.max_steps": 1_000_000,
    "trainer.val_check_interval": 100_000,
    "trainer.limit_val_batches": 50,
}
STEPS = {"max_steps": TRAINER_DEFAULTS["max_steps"], "max_time": None, "fast_dev_run": False}
"""Options of the Trainer, with their defaults; with another value, minutes are not planned."""


def adopt_recipe(parser: Parser, words: list[str], settings: Namespace) -> Namespace:
    """Return the settings of fit with a recipe's as defaults, and print what was chosen."""
    n_byte = count_bytes(settings.data.path)
    if n_byte < SMALLEST or not needs_recipe(words, settings):
        return settings
    is_planned = all(settings.trainer[name] == default for name, default in STEPS.items())
    is_planned &= not any(word.startswith("--trainer.max_steps") for word in words)
    recipe = choose_recipe(n_byte, settings.data.vocab) | (PLAN if is_planned else {})
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
    for file in take_option(words, "-c", "--config")[0]:
        # `parse` has said what is wrong with a file.
        with suppress(OSError, ValueError, yaml.YAMLError):
            model = load_yaml(Path(find_config(file)).read_text()).get("model", {})
            if isinstance(model, str) or {"net", "optim", "class_path"} & model.keys():
                return False
    return True


def choose_recipe(n_byte: int, vocab: str | None) -> dict[str, Any]:
    """Return settings for a text of so many bytes; of subwords, if there is no other vocabulary."""
    fitting = (each for most, *each in SIZES if most is None or n_byte <= most)
    n_token, dropout = next(fitting)
    recipe = load_shared() | {"model.net.dropout": dropout, "data.restart_len": RESTART_LEN}
    if vocab in (None, "bpe", "unigram"):
        recipe |= {"data.vocab": vocab or "bpe", "data.subwords.n_token": n_token}
    return recipe


def load_shared() -> dict[str, Any]:
    """Return what all recipes share: the network and the optimizer of the quickstart."""
    config = load_yaml((configs_folder() / "quickstart.yaml").read_text())
    clip = {"gradient_clip_val": config["trainer"]["gradient_clip_val"]}
    return flatten_settings({"model": config["model"], "trainer": clip})


def is_bfloat16_faster(accelerator: str) -> bool:
    """Return True if the Trainer's device multiplies bfloat16 faster than float32."""
    if accelerator != "cpu" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return has_bfloat16_units(torch.device("cpu"))


def count_bytes(path: str | Sequence[str] | None) -> int:
    """Return the size of a text's files, packed ones as they are; 0 for none."""
    paths = [Path(each).expanduser() for each in ([path] if isinstance(path, str) else path or ())]
    files = [file for each in paths for file in (each.rglob("*") if each.is_dir() else [each])]
    return sum(file.stat().st_size for file in files if file.is_file())


def describe_recipe(n_byte: int, settings: Namespace) -> str:
    """Return one line: what was chosen, and for what."""
    data, net, minutes = settings.data, settings.model.net, settings.plan.minutes
    vocab = data.vocab
    if vocab in ("bpe", "unigram"):
        vocab = f"{vocab} of {data.subwords.n_token:,} subwords"
    duration = f"{minutes:g} min" if minutes else f"{settings.trainer.max_steps:,} steps"
    sizes = f"{net.n_layer} layers of {net.d_model}, dropout {net.dropout:g}"
    chosen = f"{vocab}; {sizes}; {settings.model.optim.name}; {settings.trainer.precision}"
    if data.restart_len:
        chosen += f"; memories restart once in every {data.restart_len} tokens"
    return f"recipe for a text of {n_byte / 1e6:.1f} MB: {chosen}; {duration}"
