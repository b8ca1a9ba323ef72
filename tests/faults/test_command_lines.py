"""Command lines of real keys with hostile values: an exit code of the table, and no traceback.

Every process has 4 GB of memory and 60 seconds.
"""

import re
from collections import Counter
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from txl_lightning import __main__ as entry
from txl_lightning.command_line import COMMANDS, TrainerCommand
from txl_lightning.training import options

pytestmark = pytest.mark.faults

CODES = {0, 2, 3, 4, 5, 6, 7, 130, 143, 141}
SECONDS = 60
HUGE = ["1000000000", "1" + "0" * 30, "1e12", "-1000000000"]
NUMBERS = ["-1", "0", "1", "2", "0.5", "-0.0", "1e-320", "1e309", "nan", "inf", "-inf", *HUGE]
PLAIN = ["null", "true", "false", "", " ", "auto", "must", "last", "bytes", "words", "lines", "cpu"]
FOLDED = ["[]", "{}", "[1,2]", "[0.5,0.5,0]", "[[[[[[", "{a: {b: 1}}", "&a [*a, *a]", "!!int x"]
FOLDED += ["- 1", "{class_path: os.system}", "{class_path: lightning.Trainer}", "a: b: c"]
FILES = [".", "..", "letters.txt", "letters.txt/below", "none/below", "empty", "data", "a.yaml"]
FILES += ["checkpoint.ckpt", "cut.ckpt", "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem"]
TEXTS = ["\x1b]0;x\x07", "\u202e", "日本語", "\udcff", "a" * 5000, "'", '"', "%s%n", "${x}", "`id`"]
VALUES = st.sampled_from(NUMBERS + PLAIN + FOLDED + FILES + TEXTS) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20
)
SIZES = ["--model.net.n_layer=1", "--model.net.d_model=8", "--model.net.n_head=2"]
SIZES += ["--model.net.mem_len=8", "--data.tgt_len=8", "--data.batch_size=4"]
TEXT = ["--data.path=letters.txt", "--data.eval_batch_size=4"]
MEASURED = ["--ckpt_path=checkpoint.ckpt", *TEXT, "--trainer.accelerator=cpu"]
BASES = {
    "fit": [*SIZES, *TEXT, "--trainer.accelerator=cpu", "--report.sample_len=5"],
    **dict.fromkeys(("validate", "test", "predict"), MEASURED),
    "prepare": ["letters.txt"],
    "evaluate": ["checkpoint.ckpt", "--path=letters.txt"],
    "generate": ["--ckpt_path=checkpoint.ckpt", "--prompt=a"],
    "convert": ["checkpoint.ckpt", "--out=converted"],
    "inspect": ["checkpoint.ckpt", "--path=letters.txt", "--tokens=300"],
    "recl": ["checkpoint.ckpt", "--path=letters.txt", "--step=4", "--max_context=16"],
    "sweep": ["a.yaml"],
}
SWEEP = """{method: grid, metric: {name: val/loss}, parameters: {a: {values: [1]}},
command: ["true"]}"""
# Keys that could ask for endless work, other machines or the network: the hostile value is parsed,
# but this later one is used.
ALONE = "--trainer.devices=1 --trainer.num_nodes=1"
LAST = {
    "fit": f"{ALONE} --trainer.max_steps=2 --trainer.limit_val_batches=1 --trainer.min_steps=null "
    "--trainer.min_epochs=null --trainer.fast_dev_run=false --trainer.accumulate_grad_batches=1",
    **dict.fromkeys(("validate", "test", "predict"), ALONE),
    "generate": "--max_new_tokens=5",
    "recl": "--positions=5",
}


@cache
def keys(command: str) -> list[str]:
    """Return the options of a command."""
    is_trainers = isinstance(COMMANDS[command], TrainerCommand)
    parser = options.make_parser(command) if is_trainers else entry.make_parser(command)[1]
    names = (name for action in parser._actions for name in action.option_strings)
    return sorted({name.removesuffix("+") for name in names if name.startswith("--")})


@st.composite
def lines(draw) -> list[str]:
    command = draw(st.sampled_from(list(BASES)))
    names = st.sampled_from(keys(command)) | st.sampled_from(keys(command)).map(lambda n: n[:-1])
    options = draw(st.lists(st.tuples(names, VALUES), min_size=1, max_size=3))
    words = [f"{name}={value}" for name, value in options]
    stray = draw(st.lists(VALUES, max_size=1)) if draw(st.integers(0, 9)) == 0 else []
    return [command, *BASES[command], *words, *stray, *LAST.get(command, "").split()]


@pytest.fixture
def folder(tmp_path, run_folder):
    """Write the files that the command lines name."""
    (tmp_path / "letters.txt").write_bytes(bytes(range(97, 123)) * 60)
    (tmp_path / "empty").touch()
    (tmp_path / "a.yaml").write_text(SWEEP)
    whole = (run_folder / "checkpoints" / "last.ckpt").read_bytes()
    (tmp_path / "checkpoint.ckpt").write_bytes(whole)
    (tmp_path / "cut.ckpt").write_bytes(whole[:1000])
    return tmp_path


def find_problem(code: int | None, output: str) -> str:
    """Return what is wrong with the end of a command, or an empty text."""
    last = ([line for line in output.splitlines() if line.strip()] or [""])[-1]
    if code is None:
        return f"does not end: {last[-200:]}"
    if code not in CODES or "Traceback" in output:
        return f"exit code {code}: {output[-1500:]}"
    if code and not last.startswith("error: "):
        return f"exit code {code} without an error: {last[-300:]}"
    if code and (len(last) > 1100 or re.search(r"[\x00-\x08\x0b-\x1f\x7f]", last)):
        return f"an error of {len(last)} characters: {last[:300]!r}"
    return ""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(4))
def test_hostile_command_line_ends_with_an_exit_code_of_the_table(folder, server, count, start):
    import driver

    wrong = []
    codes = Counter()
    output = folder / "output"

    @seed(start)
    @settings(
        max_examples=count(15, 500), database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(lines())
    def run(line):
        output.unlink(missing_ok=True)
        process = server.Process(target=driver.run_line, args=(line, folder, output))
        process.start()
        process.join(SECONDS)
        code = process.exitcode
        if code is None:
            process.kill()
        codes[code] += 1
        if problem := find_problem(code, output.read_text(errors="replace")):
            wrong.append(f"{line}: {problem}")

    run()
    print(f"exit codes: {dict(codes)}")
    assert not wrong, "\n\n".join(wrong)
