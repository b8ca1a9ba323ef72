"""Every number in the prose of README.md and of the packages' pages follows from a result."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments import pages
from experiments.gpu import operations
from experiments.gpu.speed import load_published
from experiments.original import figures as original
from experiments.recurrence import figures as recurrence
from experiments.speed import table_9
from experiments.state_bytes import figures as state_bytes
from experiments.stop_gradient import figures as stop_gradient
from experiments.test_time import figures as test_time
from txl_lightning.analysis.contrasts import judge_contrast
from txl_lightning.data.json_lines import LONGEST_LINE
from txl_lightning.data.vocab.spans import LONGEST_WAIT
from txl_lightning.generation.sessions import STEP_LEN
from txl_lightning.generation.state import KEPT, SEGMENT_LEN
from txl_lightning.model.contract_logits import LONG
from txl_lightning.networks.rotary import FAR
from txl_lightning.training import network_size
from txl_lightning.training.network_size import CPU, LADDER, Device, Network, Text

REPOSITORY = Path(__file__).parents[1]
EXPERIMENTS = REPOSITORY / "experiments"
LOGBOOKS = ("experiments/earlier.md", "docs/engineering-log.md")
LOG = "docs/engineering-log.md"
BENCH = "speed/results/2026-11-24-bench.json"
INTEL = "speed/results/2026-11-22-bench.json"
GPU = [f"gpu/results/NVIDIA_H200-{call}.json" for call in (3, 4, 6)]
FOLDERS = sorted((REPOSITORY / "txl_lightning").glob("*/README.md"))
# The walk, the names and published results have tests of their own; design.md has reasons, and
# versions.md the numbers of versions.
OTHERS = {"walkthrough.md", "api.md", "published.md", "design.md", "versions.md"}
OTHERS |= {"engineering-log.md"}
DOCS = [path for path in sorted((REPOSITORY / "docs").glob("*.md")) if path.name not in OTHERS]
PAGES = [
    path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "README.md", *FOLDERS, *DOCS)
]
CARDS = ((8, 9), 128), ((9, 0), 132)  # an RTX 4090, and an H200
SUBWORDS = 4096  # of a long text
BYTES = 3.4  # of such a subword
TRAINING = ("train-512", "train-256", "train-words", "train-quickstart")


def load_json(name: str) -> Any:
    return json.loads((EXPERIMENTS / name).read_text())


def records(name: str) -> dict[str, dict[str, Any]]:
    return load_json(f"{name}/results.json")["records"]


def times_as_long(name: str, bench: str) -> str:
    """Return the range of how many times as long as ours another's training step takes."""
    cases = {case["name"]: case["contestants"] for case in load_json(bench)["cases"]}
    found = [cases[case] for case in TRAINING]
    times = [each[name]["fastest_ms"] / each["ours"]["fastest_ms"] for each in found]
    return f"{min(times):.1f} to {max(times):.1f} times as long"


def compiled_on_gpu() -> str:
    """Return the tokens per second of a compiled network on a GPU, and their share of its peak."""
    calls = [load_json(name)["parts"]["trainer"]["found"] for name in GPU]
    found = [each for call in calls for each in call if each["config"] == "paper/enwik8_base"]
    speeds = [each["tokens_per_second"] for each in found if each["way"] == "compile"]
    shown = " to ".join(f"{1000 * round(choose(speeds) / 1000):,}" for choose in (min, max))
    case = load_published("paper/enwik8_base", smoke=False)
    of_peak = operations.count_operations(case) / case.tokens / operations.PEAK
    shares = " to ".join(f"{100 * choose(speeds) * of_peak:.0f}" for choose in (min, max))
    return f"{shown} tokens/s, compiled, in bfloat16: {shares} % of its peak"


def ladder_row(network: Network) -> str:
    """Return a network that `fit` chooses for a text, and what it needs, as a row of a table."""
    n_parameter = network_size.count_parameters(network, SUBWORDS)
    text = network_size.PER_PARAMETER * n_parameter / network_size.MOST_PASSES * BYTES
    memory = network_size.reckon_memory(network, SUBWORDS) / network_size.MEMORY_SHARE
    minutes = [f"{reckon_ladder_minutes(network, make_card(*each)):,}" for each in CARDS]
    rows = f"{network.rows} x {network.tgt_len}, {network.mem_len}"
    needs = f"{n_parameter / 1e6:.1f} | {text / 1e6:,.0f} MB | {memory / 2**30:.1f} GiB"
    shape = f"{network.n_layer} layers of {network.d_model}"
    return f"| {shape} | {rows} | {needs} | {' | '.join(minutes)} |"


def reckon_ladder_minutes(network: Network, device: Device) -> int:
    """Return the minutes from which a network is chosen for a long text."""
    text = Text(math.inf, SUBWORDS)
    n_token = network_size.PER_PARAMETER * network_size.count_parameters(network, SUBWORDS)
    return math.ceil(network_size.reckon_minutes(n_token, network, text, device))


def make_card(capability: tuple[int, int], n_multiprocessor: int) -> Device:
    properties = {"name": "", "major": capability[0], "minor": capability[1], "total_memory": 0}
    properties |= {"multi_processor_count": n_multiprocessor}
    return network_size.describe_card(SimpleNamespace(**properties))


SHOWN = (("train-256", 0), ("eval-128-1600", 0), ("decode-2100", 1))
CONTESTANTS = ("ours", "x-transformers", "original", "Hugging Face")


def bench_row(name: str, digits: int, names: tuple[str, ...] = CONTESTANTS) -> str:
    """Return the milliseconds of a case as a row of a table."""
    [case] = [case for case in load_json(BENCH)["cases"] if case["name"] == name]
    times = [case["contestants"][each]["fastest_ms"] for each in names]
    return f"| {' | '.join(f'{each:.{digits}f}' for each in times)} |"


def test_tables_of_speed_follow_from_their_results():
    page = (EXPERIMENTS / "speed/README.md").read_text()
    for name, digits in SHOWN:
        assert bench_row(name, digits) in page
    rounds = load_json("speed/results/2026-11-22-table-9.json")["rounds"]
    assert table_9.format_rounds(rounds) in page


def equal_losses() -> str:
    """Return that the original's losses and ours are equal, if they are within the margin."""
    [contrast] = original.list_contrasts(records("original"))
    assert judge_contrast(contrast) == "none"
    steps = records("original")["ours 1"]["options"]["trainer.max_steps"]
    return f"After {steps:,} steps the original's and this code's [losses are equal]"


def logbook(text: str, phrase: str) -> str:
    """Return the phrase, of a measurement that the logbook has in other words."""
    pages = [REPOSITORY / name for name in LOGBOOKS if (REPOSITORY / name).exists()]
    assert any(text in " ".join(page.read_text().split()) for page in pages), text
    return phrase


def adapted(way: str) -> str:
    """Return the mean bits per byte of Django's code, read in a way."""
    bits = test_time.collect(records("test_time"), way, "django_code").whole
    return f"{fmean(bits.values()):.3f}"


def work(way: str) -> str:
    """Return how much work a token takes, read in a way; static is 1."""
    [row] = [row for row in test_time.list_ways(records("test_time"))[1:] if row[0] == way]
    return row[1]


def front_effect(name: str, phrase: str) -> str:
    """Return a phrase with the size of an effect on Python source."""
    found = {each.name: each for each in stop_gradient.list_contrasts(records("stop_gradient"))}
    return phrase.format(f"{abs(found[f'Python source: {name}'].mean):.3f}")


def in_another_order() -> str:
    """Return a phrase with the effect of rows where each seed has the same places of the text."""
    found = {each.name: each for each in state_bytes.list_contrasts(records("state_bytes"))}
    rows = "Python source: Transformer-XL of 16 rows against the window of 2, spans of 128"
    interval = found[rows].interval
    shown = f"{found[rows].mean:.3f} less ({interval[0]:+.3f} to {interval[1]:+.3f})"
    return f"in another order of the text {shown}"


# Rows of questions.md, with the row of the logbook from which they are.
ROWS = {
    "176 + 16 | 1.773 | 1,084 |": "| 176 | 16 | 48 | 1.773 | 1,084 |",
    "128 + 64 | 1.917 | 498 |": "| 128 | 64 | 12 | 1.917 | 498 |",
    "64 + 128 | 2.002 | 460 |": "| 64 | 128 | 6 | 2.002 | 460 |",
    "0 + 192 | 2.100 | 406 |": "| 0 | 192 | 4 | 2.100 | 406 |",
    "0.1 MB | 2.223 |": "| 0.1 MB, 1,024, restarted | 2 | 986 | 2.223 |",
    "2.279 (74 passes, too many)": "| 0.1 MB, 1,024, restarted | 5 | 2,466 | 2.279 |",
    "1.1 MB | | 2.238 |": "| 1.1 MB, 2,048, restarted | 5 | 2,385 | 2.238 |",
    "2.235 |": "| 1.1 MB, 2,048, width 192, restarted | 30 | 9,159 | 2.235 |",
    "70 MB | 1.879 |": "| 70 MB, 4,096, restarted | 2 | 1,151 | 1.879 |",
    "1.792 |": "| 70 MB, 4,096, restarted | 5 | 2,879 | 1.792 |",
    "1.695 |": "| 70 MB, 4,096, width 192, restarted | 30 | 10,760 | 1.695 |",
}


def log(text: str, phrase: str) -> str:
    """Return the phrase, of a measurement that the engineering log has in other words."""
    assert text in " ".join((REPOSITORY / LOG).read_text().split()), text
    return phrase


# The log's words for what the quickstart printed.
QUICKSTART = (
    "3,504 steps in 4 min 42 s, 12,553 tokens/s; 1.314 on the validation text (loss 3.282); "
    "1.365, 1.373 and 1.688 on the test text"
)


def test_the_text_on_the_first_page_was_generated():
    [text] = re.findall(r"```text\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert text in (REPOSITORY / LOG).read_text()


def rounded_angles() -> str:
    """Return by how much large angles differ, which are up to the position."""
    first, later = (round(1 / np.spacing(np.float32(each * 0.75))) for each in (FAR, 8 * FAR))
    times = "at eight times that position, of"
    return f"position {FAR:,}, large angles are multiples of 1/{first} radian; {times} 1/{later}."


def count_known(group: str, arm: str) -> int:
    """Return the segments of words that an arm knows, in each of its seeds."""
    [known] = {
        recurrence.count_known(c)
        for c in recurrence.collect(records("recurrence"), group, arm).values()
    }
    return known


def list_bound_phrases() -> dict[str, list[str]]:
    """Return sentences of pages as they follow from the results."""
    compressor = records("test_time")["ppmd after"]
    order = compressor["options"]["order"]
    ppmd = f"{compressor['bits_per_byte']['django_code']:.3f}"
    idle = "| 3,504 steps, five minutes of two idle cores | 1.373 |"
    busy = "| 1,056 steps, five minutes of two busy cores | 1.822 |"
    return {
        "README.md": [
            equal_losses(),
            f"fastest of {load_json(BENCH)['rounds']} |",
            *(bench_row(name, digits, (*CONTESTANTS, "labml-nn")) for name, digits in SHOWN),
            f"takes {times_as_long('x-transformers', INTEL)} for a training step",
            f"trains at {compiled_on_gpu()}",
            logbook("after the training text | 1.377; 1.255 |", "| no training | 1.25 |"),
            log(QUICKSTART, idle),
            log("1,056 steps in 5 min 1 s; 1.822 on the test text, 1.900", busy),
            f"networks of this size need {adapted('static')} bits per byte.",
            f"With a cache they need {adapted('cache of 20,000')}, with",
            f"gradient steps, too, {adapted('cache and steps')}; PPMd needs {ppmd} (five seeds",
            f"A correction for all {len(pages.list_results(pages.load_results()))} would",
            front_effect(
                "the window against Transformer-XL, 2 rows",
                "at equal span and tokens, a Transformer-XL of 2 rows and a window trained as one "
                "differ by {}",
            ),
            front_effect(
                "Transformer-XL of 16 rows against the window of 2",
                "16 rows need {} less than a window of 2",
            ),
            in_another_order(),
            f"an LSTM of two layers all {count_known('S3', 'LSTM, 2 layers')}.",
            log("`test`: 2.287 bits per byte", "needs 2.287 bits per byte"),
        ],
        "docs/huggingface.md": [rounded_angles()],
        "docs/own_network.md": [
            f"also in a segment of {LONG} tokens",
            "its is not 0",
            "a memory of length 0",
            "above 0 where the first is better",
        ],
        "docs/train.md": [
            *map(ladder_row, LADDER[1:]),
            f"from {reckon_ladder_minutes(LADDER[1], CPU):,} minutes on",
            log(
                "the recipe is within 1 % of the best that was", "were at most 1 % behind the best"
            ),
        ],
        "docs/questions.md": [
            *(logbook(text, phrase) for phrase, text in ROWS.items()),
        ],
        "docs/serve.md": [
            f"After {LONGEST_WAIT:,} characters",
            f"as many again (256 at least), the last {KEPT:,} tokens",
            f"and at most {2 * LONGEST_WAIT:,} characters that wait",
            f"follows each tokens ({STEP_LEN}), as",
            f"for each {SEGMENT_LEN} tokens",
            "less than 1e-5 of their size plus 1e-5",
            "width 128, bytes, memory of 128, float32",
            "at d88da3b2 (",
            "AVX-512",
            "for 8 sessions this is slower",
            "unless their is + 1 or less",
        ],
        "txl_lightning/data/README.md": [
            log("100 %, 100 %, 27 %, 24 %", "accuracy is 100 % with , and 24 % with "),
            log("| words | 33.6 | 189 |", "in less than 300 MB of memory"),
            f"A line has at most {LONGEST_LINE >> 30} GiB",
        ],
        "txl_lightning/evaluation/README.md": [
            log(
                "150,790 tokens: float32 3.35969, bf16 3.36003",
                "nats of 150,790 tokens with a memory of 256 rose by 0.01 %, from 3.3597 to 3.3600",
            ),
            *(
                f"| {name} | {adapted(way)} | {work(way)} |"
                for name, way in (
                    ("static", "static"),
                    ("cache of 20,000 states", "cache of 20,000"),
                    ("gradient steps", "steps of all weights"),
                    ("gradient steps in segments of 8", "steps in shorter segments"),
                    ("both", "cache and steps"),
                )
            ),
            f"| PPMd (order {order}, 1 GB), after the training text | {ppmd} | |",
            log("which fills during the first half | 5.15, 5.23 | 1.55 |", "takes 1.55 times"),
            log("| steps | 13.15, 13.20 | 3.9 |", "steps 3.9 times"),
        ],
    }


# Numbers that nobody measured: names, versions, limits in the code, settings, exit codes, examples.
DEFINED = [
    # Names, versions and kinds of numbers.
    r"NVIDIA H200", r"PyTorch 2\.13, Lightning 2\.6",
    r"PyTorch 2\.11 cannot recompute layers in float64", r"network of 1\.4 million parameters",
    r"\d+ layers of \d+, memory [\d,]+", r"evaluation of 128 tokens",
    r"et al\. \d{4}", r"Lightning 2", r"Python 3\.\d+(\.4)?( to 3\.1\d)?",
    r"(torch|and|\() ?2\.\d+\.\d:?", r"transformers [45](\.57)?", r"original's type 1",
    r"b?float\d\d|sha256|u?int\d\d|\bS3\b|SIGUSR1|FSDP2|sm_80|sm_90",
    # Counts of what is there, and limits in the code.
    r"0\.1 to 7 million parameters", r"above 0 favour", r"side of 0",
    r"[oO]n 40,000 tokens of Django's code", r"\| 40,000 tokens of Django's code",
    r"static is 1", r"question 5",
    r"of 22 rows on four devices, two have 6 and two have 5", r"on 1, 2, 4, 8 and 16 devices",
    r"but on 8 at most, and on 2", r"120 seconds before the time limit", r"SLURM \d+\.\d+\.\d",
    r"\(?exit( code)? \d\)?", r"\| \d{1,3} (?=\|)", r"(within|to) 1e-5", r"a 95 % interval",
    r"\d+ (published runs|faults)", r"(blocks of 1|parts of 64) MiB", r"the largest id \+ 1",
    r"64 MiB and more than 200 times", r"(of|From) 50 kB (or more|of text)", r"mem_len \d+",
    r"reaches 1 with", r"over 16 segments",
    r"(is|;) 0(?=[,: ])", r"Section \d\.\d", r"\| [34]\.\d(?=,| \|)",
    # Settings and examples.
    r"checkpoints have format \d", r"compressor of 2002",
    r"windows of 2,048 tokens", r"split 90/5/5", r"first [\d,]+ (bytes|tokens)", r"sample [12] ",
    r"10 million times", r"at 24 letters", r"segments of 128", r"from the 512 before it",
    r"about 5\.0 minutes", r"every \d+ steps",
    r"12,300 tokens/s here: about 1,440 steps",
    r"in 5\.0 minutes", r"begins at step 0",
    r"after 2,000 steps", r"schedule for 20,000 steps", r"Begin with 64 and 128", r"= 192",
    r"on bytes, 2,000 steps", r"text of 10 kB, 1 MB, 1 GB", r"\| (10 k|100 k|1 M)B (?=\|)",
    r"\| 10 MB to 100 MB", r"\| 200 MB to 10 GB", r"RTX 4090", r"H200",
    r"\| text \| 2 minutes \| 5 minutes \| 30 minutes", r"version 5",
    r"Is 1\.9 bits per byte good", r"temperature of 0\.8",
    r"moves by one token, which takes as long as 512 segments", r"moves by 8 and sees 63 tokens",
    r"UTF-\d+", r"Latin-1", r"200 kB of text",
    # Of other networks; tests/networks/test_page.py has their sizes.
    r"(Dao and Gu|Schmidhuber) \d{4}", r"pytorch 0\.[47]\.0", r"is 1 \(the state is carried\) or 0",
    r"\| [\d,]+ \| [\d,]+ (?=\|)", r"A step reads 1,024 tokens", r"vocabulary of 4,096",
    r"attends to 128 states", r"\(within 1 %\), and 1,464 updates of 1,024 tokens",
    r"segments of 512", r"Rows are 16 x 64 tokens", r"are 2 x 512", r"16 x 2 segments of 32",
    r"a of 0 leaves nothing", r"any number above 0", r"only 1 is allowed",
    r"make 1,024, 2,048 or 4,096 of them",
    r"25 to 31 tokens ago", r"use temperature 0\.8 and 0\.05",
    r"(in place of|bytes, and|It takes) 2,000 steps", r"in every 512 tokens",
    r"at 80/2100 \(12 layers of 512\)",
]  # fmt: skip


def read_prose(page: str) -> str:
    """Return a page without code and addresses; what the quickstart printed stays."""
    text = (REPOSITORY / page).read_text()
    text = re.sub(r"<!-- results.*?end of results -->", "", text, flags=re.S)
    text = re.sub(r"^```\w+\n.*?^```", "", text, flags=re.S | re.M).replace("```", "")
    text = re.sub(r"`[^`]*`", "", re.sub(r"\]\([^)]*\)", "]", text))
    return " ".join(text.split())


@pytest.mark.parametrize("page", PAGES)
def test_each_number_of_a_page_follows_from_a_result_or_is_defined(page):
    prose = read_prose(page)
    for phrase in list_bound_phrases().get(page, ()):
        phrase = " ".join(phrase.split())
        assert phrase in prose, f"{page}: its results say: {phrase}"
        prose = prose.replace(phrase, "")
    for pattern in DEFINED:
        prose = re.sub(pattern, "", prose)
    assert list(find_numbers(prose)) == [], f"{page}: bind them in list_bound_phrases"


def find_numbers(prose: str) -> Iterator[str]:
    for match in re.finditer(r"\d[\d.,]*", prose):
        yield prose[max(0, match.start() - 30) : match.end() + 30]
