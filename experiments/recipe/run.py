"""Which settings make the best model of a text of one's own, by its size and the minutes there are?

    python -m experiments.recipe.run [--minutes 2 5 30] [--only KIND ...] [--fast]

Texts of 0.1 and 1.1 MB (Shakespeare), 10 and 70 MB (novels). Steps of all recipes
are timed in turn, which gives each one's number of steps in so many minutes of a quiet machine;
training of these steps may then share the machine. Measured are bits per byte of the test text;
nats of the first 128 tokens after an empty memory; and the share of a sample's words that the
text has.
"""

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments import common, pace
from experiments.results import load_records
from txl_lightning import OptimConfig, TransformerXLConfig, generate
from txl_lightning.data.corpora import SHAKESPEARE, place_file
from txl_lightning.data.settings import DataConfig

QUICKSTART = {"config": "configs/quickstart.yaml", "plan.minutes": None}
PLAIN = {"data.vocab": "bytes", "trainer.precision": "32-true"}
"""The defaults of fit before this question was asked: bytes, Adam in float32."""


def make_recipe(
    n_token: int, d_model: int = 128, n_layer: int = 4, dropout: float = 0.0, **more: Any
) -> dict[str, Any]:
    """Return the quickstart's settings in bfloat16 with so many subwords; 256 are the bytes."""
    subwords = {"data.subwords.n_token": n_token, "data.subwords.train_bytes": 5_000_000}
    vocab = {"data.vocab": "bytes"} if n_token == 256 else {"data.vocab": "bpe"} | subwords
    sizes = {"d_model": d_model, "n_layer": n_layer, "dropout": dropout}
    net = {f"model.net.{name}": value for name, value in sizes.items()}
    return QUICKSTART | vocab | net | {"trainer.precision": "bf16-mixed"} | more


RESTART = {"data.restart_len": 512}
SIZES = {
    "0.1": {
        "plain": PLAIN,
        "bytes": make_recipe(256, dropout=0.2),
        "512": make_recipe(512, dropout=0.2),
        "1024": make_recipe(1024, dropout=0.3),
        "1024 restarted": make_recipe(1024, dropout=0.3) | RESTART,
    },
    "1": {
        "plain": PLAIN,
        "1024": make_recipe(1024, dropout=0.1),
        "2048": make_recipe(2048, dropout=0.1),
        "2048 restarted": make_recipe(2048, dropout=0.1) | RESTART,
        "2048 192": make_recipe(2048, 192, dropout=0.1),
        "2048 192 restarted": make_recipe(2048, 192, dropout=0.2) | RESTART,
    },
    "10": {
        "plain": PLAIN,
        "4096": make_recipe(4096),
        "4096 restarted": make_recipe(4096) | RESTART,
        "4096 192": make_recipe(4096, 192),
        "4096 192 restarted": make_recipe(4096, 192) | RESTART,
        "4096 256": make_recipe(4096, 256, 6),
    },
    "70": {
        "plain": PLAIN,
        "4096": make_recipe(4096),
        "4096 restarted": make_recipe(4096) | RESTART,
        "4096 192 restarted": make_recipe(4096, 192) | RESTART,
        "8192 192": make_recipe(8192, 192),
        "8192 256": make_recipe(8192, 256, 6),
    },
}
KINDS = {f"{size} MB, {name}": (size, SIZES[size][name]) for size in SIZES for name in SIZES[size]}
ROWS, SEGMENT, FIRST = 16, 64, 128
NET = {"n_layer": 4, "d_model": 128, "dropout": 0.0}
SAMPLE_LEN, PROMPT = 400, "\n"
FILTERS: dict[str, dict[str, float]] = {
    "temperature 1": {},
    "temperature 0.8": {"temperature": 0.8},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "temperature 0.8, min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
}
"""Of the tokens of a sample."""


def main() -> None:
    """Time a step of all kinds, then train them for each number of minutes."""
    minutes = {"type": float, "nargs": "*", "default": [2, 5, 30], "help": "of training"}
    args = common.parse_args(__file__, __doc__, (1,), "weights", KINDS, minutes=minutes)
    common.measure_once(args, "pace", time_recipes)
    for duration in [0.1] if args.fast else args.minutes:
        for kind in args.only:
            for seed in args.seeds:
                name = f"{kind}, {duration:g} minutes {seed}"
                common.measure_once(args, name, measure, kind, duration, seed)


def time_recipes(args: Namespace) -> dict[str, Any]:
    """Return the seconds of a step by what they depend on."""
    recipes = {describe(recipe): recipe for _, recipe in KINDS.values()}
    steps = {name: make_step(recipe) for name, recipe in recipes.items()}
    return pace.measure(args, steps)


def describe(recipe: dict[str, Any]) -> str:
    """Return what the time of a step depends on."""
    names = ("data.subwords.n_token", "model.net.d_model", "model.net.n_layer", "trainer.precision")
    return " ".join(str(recipe.get(name, 256)) for name in names)


def make_step(recipe: dict[str, Any]) -> Callable[[], None]:
    is_plain = recipe is PLAIN
    sizes = {name: recipe.get(f"model.net.{name}", default) for name, default in NET.items()}
    sizes |= {"n_token": recipe.get("data.subwords.n_token", 256)}
    config = TransformerXLConfig(norm="post" if is_plain else "pre", **sizes)
    optim = OptimConfig(name="adamw" if is_plain else "muon")
    tokens_BT = torch.randint(config.n_token, (ROWS, SEGMENT + 1))
    return pace.make_step(config, optim, tokens_BT, is_narrow=not is_plain)


def measure(args: Namespace, kind: str, minutes: float, seed: int) -> dict[str, Any]:
    """Train for the steps of so many minutes; return what the test text and samples show."""
    seconds = load_records(args.out)["pace"]["step_seconds"][describe(KINDS[kind][1])]
    steps = 4 if args.fast else pace.count_steps(minutes, seconds)
    plan = {"trainer.max_steps": steps, "trainer.val_check_interval": max(steps // 4, 1)}
    options = choose_options(args, kind) | plan | {"seed_everything": seed}
    run = common.fit(args.runs / f"{kind} {minutes:g} {seed}".replace(" ", "_"), options)
    limit = {"split": "test", "max_tokens": 2000 if args.fast else 400_000}
    read = {"batch_size": ROWS, "tgt_len": SEGMENT, "mem_len": 128}
    first = {"batch_size": ROWS, "tgt_len": FIRST, "mem_len": 0}
    whole, empty = (run.evaluate(limit | how) for how in (read, first))
    fields = {"kind": kind, "minutes": minutes, "seed": seed, "steps": steps}
    return (
        fields
        | run.describe("val/bits_per_byte")
        | {"bits_per_byte": whole["bits_per_byte"], "first_bits_per_byte": empty["bits_per_byte"]}
        | sample_words(run, options)
    )


def choose_options(args: Namespace, kind: str) -> dict[str, Any]:
    size, recipe = KINDS[kind]
    where = {"data.path": str(write_text(args.runs / "texts", size)), "trainer.accelerator": "cpu"}
    return recipe | where | (common.FAST if args.fast else {})


def write_text(folder: Path, size: str) -> Path:
    """Write the text of a size in MB: Shakespeare, or novels one after the other."""
    path, data = folder / f"{size}.txt", DataConfig().data_folder
    if not path.exists():
        end = int(1e6 * float(size)) if size != "1" else None
        if size in ("0.1", "1"):
            files = place_file(SHAKESPEARE, data / "tiny_shakespeare")
        else:
            files = sorted((data / "novels98").glob("*/*.txt"))
        text = b"".join(file.read_bytes() for file in files)[:end]
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return path


def sample_words(run: common.TrainedRun, options: dict[str, Any]) -> dict[str, Any]:
    """Return a plain sample, and the share of words that the text has, by the filter of tokens."""
    words = {*find_words(Path(options["data.path"]).read_text(errors="replace"))}
    shares, samples = {}, {}
    for name, filters in FILTERS.items():
        texts = [
            generate(run.net, PROMPT, SAMPLE_LEN, vocab=run.vocab, seed=seed, **filters)
            for seed in range(1, 5)
        ]
        found = [word in words for text in texts for word in find_words(text)]
        shares[name], samples[name] = sum(found) / max(len(found), 1), texts[0]
    return {"known_words": shares, "samples": samples}


def find_words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())


if __name__ == "__main__":
    torch.set_flush_denormal(True)
    main()
