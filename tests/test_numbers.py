"""Every number in the prose of README.md and of the packages' pages follows from a result."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
EXPERIMENTS = REPOSITORY / "experiments"
LOGBOOK = "experiments/README.md"
LOGBOOK_TEXT = (REPOSITORY / LOGBOOK).read_text()
BENCH = "speed/results/2026-11-24-bench.json"
INTEL = "speed/results/2026-11-22-bench.json"
OTHER = "speed/results/2026-11-25-bench.json"  # on another AMD EPYC
FOLDERS = sorted((REPOSITORY / "txl_lightning").glob("*/README.md"))
PAGES = [path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "README.md", *FOLDERS)]
TRAINING = ("train-512", "train-256", "train-words", "train-quickstart")
EVALUATION = ("eval-80-2100", "eval-128-1600", "eval-64-640")


def load_json(name: str) -> Any:
    return json.loads((EXPERIMENTS / name).read_text())


def records(name: str) -> dict[str, dict[str, Any]]:
    return load_json(f"{name}/results.json")["records"]


def ratios(names: tuple[str, ...], precision: str = "", bench: str = BENCH) -> str:
    """Return the range of how many times as fast ours is as the original in float32.

    By sums over operations where other work has disturbed a case; two precisions have none.
    """
    cases = {case["name"]: case for case in load_json(bench)["cases"]}
    pairs = [(cases[name], cases[name + precision]) for name in names]
    times = [
        theirs["contestants"]["original"]["times_ours"]
        if theirs.get("spoilt") and not precision
        else theirs["contestants"]["original"]["fastest_ms"]
        / ours["contestants"]["ours"]["fastest_ms"]
        for theirs, ours in pairs
        if not (precision and (theirs.get("spoilt") or ours.get("spoilt")))
    ]
    return " to ".join(f"{each:.1f}" for each in sorted({min(times), max(times)}))


def depth(kind: str, way: str) -> str:
    found = [each for each in records("depth").values() if each["kind"] == kind]
    values = [each["bits_per_byte"][way] for each in found]
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def window(length: int) -> str:
    rows = [row for record in records("sliding_window").values() for row in record["rows"]]
    return f"{fmean(row['speedup'] for row in rows if row['attention_len'] == length):,.0f}"


def curve() -> str:
    found = load_json("reproduction/golden_curve.json")
    apart = f"{found['largest_loss_difference']:.1e}".replace("e-0", "e-")
    return f"{found['steps']} of the original's training steps within {apart}"


def xz() -> str:
    found = records("quickstart")["xz"]
    alone, after = (f"{found[name]:.2f}" for name in ("alone", "after"))
    return f"{alone} bits per byte, and to {after} after the training text"


def quickstart() -> list[str]:
    """Return the sentence on its memory, once both kinds of network have been trained."""
    found = records("quickstart").values()
    kinds = ("memory", "mem_len 128"), ("alone", "mem_len 0"), ("alone", "window")
    bits = [
        [each["bits_per_byte"][way] for each in found if each["kind"] == kind]
        for kind, way in kinds
    ]
    if min(map(len, bits)) < 3:
        return []
    ours, theirs, window = (f"{fmean(values):.3f} ± {stdev(values):.3f}" for values in bits)
    sentence = f"The quick start's network needs {ours} bits per byte; trained without, {theirs}"
    return [f"{sentence}, and {window} if read by a sliding window"]


def logbook(text: str, phrase: str) -> str:
    """Return the phrase, of a measurement that the logbook has in other words."""
    assert text in " ".join((REPOSITORY / LOGBOOK).read_text().split()), text
    return phrase


def adapted(way: str) -> str:
    """Return the bits per byte of the quick start's test text in the logbook's table of ways."""
    [bits] = re.findall(rf"^\| {re.escape(way)} \| ([\d.]+) \|", LOGBOOK_TEXT, re.M)
    return bits


# The logbook's words for what the quickstart printed.
QUICKSTART = (
    "3,504 steps in 4 min 42 s, 12,553 tokens/s; 1.314 on the validation text (loss 3.282); "
    "1.365, 1.373 and 1.688 on the test text"
)


def list_bound_phrases() -> dict[str, list[str]]:
    """Return sentences of pages as they follow from the results."""
    work = records("fragmentation")["window/1"]["computed"]
    printed = ("12,553 tokens/s here: about 3,504 steps",)
    printed += ("step 3504 validation: 1.314 bits/byte 3.282 loss",)
    printed += ("trained 3,504 of 3,504 steps", "in 0:04:42")
    printed += tuple(f"{bits} bits per byte" for bits in ("1.365", "1.373", "1.688"))
    return {
        "README.md": [
            curve(),
            f"needs {work} times the work",
            f"fastest of {load_json(BENCH)['rounds']}: training {ratios(TRAINING)} times",
            f"evaluation {ratios(EVALUATION)} times (",
            f"theirs in float32: {ratios(EVALUATION, '-bf16')}), ",
            f"training {ratios(('train-quickstart', 'train-256'), bench=OTHER)} times;",
            f"decoding {ratios(('decode-2100',))} times",
            f"{ratios(TRAINING, bench=INTEL)}, {ratios(EVALUATION, bench=INTEL)} "
            f"and {ratios(('decode-2100',), bench=INTEL)} times",
            f"a window needs {depth('4, equal time', 'window')}, and one with memory "
            f"{depth('4, memory', 'memory')}",
            f"xz -9e compresses the same text to {xz()}",
            *quickstart(),
            *(logbook(QUICKSTART, phrase) for phrase in printed),
            logbook("max_steps 2549", "after 2,549 steps"),
            f"{adapted('static')} and {adapted('`--cache_len 20000 --rate 0.1`')} bits per byte",
            logbook("| 1.377; 1.255 |", "PPMd needs 1.377, and 1.255 after the training text"),
        ],
        "txl_lightning/data/README.md": [
            logbook("100 %, 100 %, 27 %, 24 %", "accuracy is 100 % with , and 24 % with "),
            logbook("33.6 s, 189 MB", "in less than 300 MB of memory"),
        ],
        "txl_lightning/evaluation/README.md": [
            logbook(
                "150,790 tokens: float32 3.35969, bf16 3.36003",
                "nats of 150,790 tokens with a memory of 256 rose by 0.01 %, from 3.3597 to 3.3600",
            ),
            f"| static | {adapted('static')} | 1 |",
            f"| {adapted('`--rate 0.1`')} | 3.7 times as long",
            f"| {adapted('`--cache_len 20000` (theta 40, weight 0.4)')} | 2.0 times as long |",
            f"| {adapted('`--cache_len 20000 --rate 0.1`')} | 5.1 times as long |",
            logbook("of order 16 with 1 GB", "PPMd (order 16, 1 GB), after the training text"),
            logbook("| 1.377; 1.255 |", "| 1.255 | |"),
            f"{window(800)} times faster than with a window of 800, "
            f"and {window(3800)} times faster than with one of 3,800",
        ],
    }


# Numbers that nobody measured: names, versions, limits in the code, settings, exit codes, examples.
DEFINED = [
    # Names, versions and kinds of numbers.
    r"et al\. \d{4}", r"Lightning 2", r"Python 3\.\d+(\.4)?( to 3\.14)?", r"paper's Table 9",
    r"(torch|and|\() ?2\.\d+\.\d:?", r"transformers [45](\.57)?", r"original's type 1",
    r"b?float\d\d|sha256|u?int\d\d|\bS3\b|SIGUSR1|FSDP2|sm_80|sm_90",
    # Counts of what is there, and limits in the code.
    r"\(?exit( code)? \d\)?", r"\| \d{1,3} (?=\|)", r"(within|to) 1e-5", r"a 95 % interval",
    r"\d+ (published runs|faults)", r"(blocks of 1|parts of 64) MiB", r"the largest id \+ 1",
    r"64 MiB and more than 200 times", r"(of|From) 50 kB (or more|of text)", r"mem_len \d+",
    r"reaches 1 with", r"over 16 segments", r"network in 40 lines",
    # Settings and examples.
    r"windows of 2,048 tokens", r"split 90/5/5", r"first [\d,]+ (bytes|tokens)", r"sample [12] ",
    r"10 million times", r"at 24 letters", r"segments of 128", r"from the 512 before it",
    r"about 5\.0 minutes", r"nine minutes", r"every \d+ steps",
    r"12,300 tokens/s here: about 1,440 steps",
    r"in 5\.0 minutes", r"begins at step 0",
    r"UTF-\d+", r"Latin-1", r"200 kB of text",
    r"25 to 31 tokens ago", r"use temperature 0\.8 and 0\.05,", r"in place of 2,000 steps",
    r"in every 512 tokens", r"at 80/2100 \(12 layers of 512\)", r"3,583,872 tokens",
    r"held-out test text, 150,791 of 150,791 tokens, 3\.48 bytes each",
]  # fmt: skip


def read_prose(page: str) -> str:
    """Return a page without code and addresses; what the quickstart printed stays."""
    text = (REPOSITORY / page).read_text()
    text = re.sub(r"<!-- claims.*?end of claims -->", "", text, flags=re.S)
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
