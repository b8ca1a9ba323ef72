"""The table of experiments/gpu/README.md follows from the results of its calls."""

import json
import re
from statistics import fmean

CONFIGS = {
    "enwik8_base": "paper/enwik8_base",
    "wt103_base": "paper/wt103_base",
    "enwik8_large": "paper/enwik8_large",
    "wt103_base of NVIDIA": "nvidia/wt103_base",
}
WAYS = {
    "Trainer, bf16-mixed": {"way": "bf16-mixed"},
    "Trainer, bf16-mixed, compiled": {"way": "compile"},
    "Trainer, 16-mixed": {"way": "16-mixed"},
    "Trainer, float32": {"way": "32-true"},
    "Trainer, bf16-mixed, FSDP2 on one GPU": {"way": "fsdp2"},
    "bare loop, sdpa": {"kernel": "sdpa"},
    "bare loop, matmul": {"kernel": "matmul"},
    "x-transformers of the same sizes": {"peer": "x-transformers"},
    "evaluation": {"task": "evaluation"},
    "decoding, tokens/s": {"task": "decoding"},
}


def list_speeds(result: dict, config: str, way: str) -> list[float]:
    """Return the tokens per second that a call has found."""
    # Call 6 also has the Trainer of an earlier commit.
    parts = [part for name, part in result["parts"].items() if " at " not in name]
    found = [each for part in parts for each in part["found"]]
    about = {"config": config} | WAYS[way]
    if "peer" in about:
        about["config"] = "enwik8_base"
    speeds = []
    for each in found:
        # In the first call layers were compiled, as the Trainer does since; one step was captured.
        each = each | {"way": each.get("way", "").replace("compile layers", "compile")}
        if about.items() <= each.items() and "captured" not in each:
            speeds += [each["tokens_per_second"]] if "tokens_per_second" in each else []
    return speeds


def test_every_cell_of_the_table_of_calls_follows_from_the_results(repository):
    folder = repository / "experiments/gpu"
    results = [
        json.loads((folder / f"results/NVIDIA_H200-{call}.json").read_text())
        for call in (1, 2, 3, 4, 6)
    ]
    page = (folder / "README.md").read_text()
    [table] = re.findall(r"\| call 6 \|\n\|[-|]+\|\n(.*?)\n\n", page, re.DOTALL)
    seen = ""
    for line in table.splitlines():
        network, way, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        seen = network or seen
        config = CONFIGS[seen.partition(",")[0]]
        unit = 1 if way.endswith("tokens/s") else 1000
        found = [list_speeds(result, config, way) for result in results]
        assert cells == [format_speeds([speed / unit for speed in each]) for each in found], line
    assert len(table.splitlines()) == 18


def format_speeds(speeds: list[float]) -> str:
    """Return up to three speeds, or the mean, the range and the number of more."""
    if len(speeds) < 4:
        return ", ".join(f"{speed:.3g}" for speed in speeds)
    least, mean, most = (f"{choose(speeds):.3g}" for choose in (min, fmean, max))
    return f"{mean} ({least} to {most}, {len(speeds)} trainings)"
