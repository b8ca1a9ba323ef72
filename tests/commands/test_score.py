"""score: the printed record, the files of lists, and the memory between them."""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import threading

import pytest

from txl_lightning import load
from txl_lightning import score as score_texts

LISTS = [
    {"id": "a", "candidates": ["to be", "tobe"], "reference": "tobe"},
    {"candidates": ["or", "not", "or"], "context": "so ", "scores": [-50.0, 0.0, 0.0]},
    {"id": 7, "candidates": ["x y"]},
]


@pytest.fixture
def run_score(accepted, run_folder, tmp_path):
    """Score lists; return the printed records."""

    def run(lists, *options) -> list[dict]:
        path = tmp_path / "lists.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in lists))
        shown = accepted("score", run_folder, "--candidates", path, *options).out
        return [json.loads(line) for line in shown.splitlines()]

    return run


def sum_nats(run_folder, mem_len, context, candidates) -> list[float]:
    model, vocab = load(run_folder)
    nats = score_texts(model, context, candidates, vocab=vocab, mem_len=mem_len)
    return [float(nats_L.sum()) for nats_L in nats]


def test_each_list_is_scored_after_the_text_that_was_chosen_before(run_score, run_folder):
    first, second, third = run_score(LISTS, "--mem_len=99")
    expected = sum_nats(run_folder, 99, "\n", ["to be\n", "tobe\n"])
    assert first["nats"] == pytest.approx(expected, abs=1e-4)
    assert first["id"] == "a"
    assert first["text"] == ["to be", "tobe"][first["best"]]
    assert first["tokens"] == [6, 5]
    # The reference, not the best, is remembered.
    expected = sum_nats(run_folder, 99, "\ntobe\nso ", ["or\n", "not\n"])
    assert second["nats"] == pytest.approx([*expected, expected[0]], abs=1e-4)
    assert second["best"] != 0
    chosen = f"\ntobe\nso {second['text']}\n"
    assert third["nats"] == pytest.approx(sum_nats(run_folder, 99, chosen, ["x y\n"]), abs=1e-4)


def test_a_cache_and_steps_learn_from_the_lists_before(run_score, refused, run_folder):
    lists = [{"candidates": ["qxzv jkw", "a"], "reference": "qxzv jkw"}] * 4
    static = run_score(lists)
    for option in ("--cache_len=500", "--rate=0.5"):
        adapted = run_score(lists, option)
        assert adapted[0]["nats"] == pytest.approx(static[0]["nats"], rel=0.2)
        gains = [a["nats"][0] / b["nats"][0] for a, b in zip(adapted, static, strict=True)]
        assert gains[3] < gains[1] < 1
    where = ("score", run_folder, "--candidates=a.jsonl", "--rate=0.5")
    message = "rate: invalid 0.5; expected null with carry false"
    assert refused(*where, "--carry=false") == (2, message)
    for option in ("rms_tokens", "adapt_across_documents"):
        code, message = refused(*where, f"--{option}=1")
        assert (code, message.split(";")[0]) == (2, f"unknown option --{option}")


def test_without_carry_each_list_has_only_its_own_context(run_score, run_folder):
    records = run_score(LISTS[:2], "--carry=false", "--context=ab", "--end", "", "--mem_len=99")
    expected = sum_nats(run_folder, 99, "abso ", ["or", "not", "or"])
    assert records[1]["nats"] == pytest.approx(expected, abs=1e-4)


def test_the_nats_of_words_sum_to_those_of_their_candidate(run_score):
    texts = ["to  be, é", "b", "tobe"]
    [record] = run_score([{"candidates": texts}], "--surprisal=true")
    for text, words, nats in zip(texts, record["words"], record["nats"], strict=True):
        assert "".join(word for word, _ in words) == f"{text}\n"
        assert sum(value for _, value in words) == pytest.approx(nats)
    assert [word for word, _ in record["words"][0]] == ["to", "  be,", " é", "\n"]


def test_a_byte_order_mark_is_no_part_of_the_lists(accepted, run_folder, tmp_path):
    outputs = []
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "a.jsonl").write_text('{"candidates": ["a"]}\n', encoding=encoding)
        outputs.append(accepted("score", run_folder, "--candidates=a.jsonl").out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"candidates": ["a"]}\n\n{"candid', "a.jsonl, line 3: not JSON"),
        (b"[" * 99999, "a.jsonl, line 1: not JSON"),
        (b"\xff", "a.jsonl, line 1: byte 0 is not UTF-8 text; if it is Latin-1: iconv -f"),
        (b"\xff\xfe", "a.jsonl: UTF-16 (iconv -f UTF-16 -t UTF-8); expected text in UTF-8"),
        (b"PK\3\4abc", "a.jsonl: a zip; expected text in UTF-8"),
        (gzip.compress(b"{}"), "a.jsonl: compressed by gzip (gzip -dc); expected text in UTF-8"),
        (b"[1]", "a.jsonl, line 1: list: invalid [1]; expected settings by name"),
        (b"{}", "a.jsonl, line 1: candidates: missing; expected a key candidates"),
        (b'{"candidates": []}', "line 1: candidates: invalid none; expected at least"),
        (b'{"candidates": "a"}', "line 1: candidates: invalid 'a'; expected a list"),
        (b'{"candidates": ["a"], "refrence": ""}', "did you mean reference?"),
        (b'{"candidates": ["a"], "scores": [NaN]}', "line 1: scores: invalid (nan,)"),
    ],
)
def test_an_invalid_line_is_named_with_its_file(refused, run_folder, tmp_path, content, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    code, line = refused("score", run_folder, "--candidates=a.jsonl")
    assert code == 3
    assert message in line


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_packed_lines_and_lists_are_those_in_the_file(
    accepted, refused, run_folder, tmp_path, ending, pack
):
    contents = {
        ("candidates", "a.jsonl"): b'{"candidates": ["a"]}\n' * 2,
        ("lines", "b.txt"): b"to be\nor not\n",
        ("lines", "c.jsonl"): b'{"text": "to be"}\n',
    }
    for (option, name), content in contents.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"{name}{ending}").write_bytes(pack(content))
        plain = accepted("score", run_folder, f"--{option}={name}").out
        assert accepted("score", run_folder, f"--{option}={name}{ending}").out == plain
    (tmp_path / f"d.txt{ending}").write_bytes(pack(b"to be\n" * 99)[:-9])
    code, line = refused("score", run_folder, f"--lines=d.txt{ending}")
    assert (code, line.startswith(f"d.txt{ending}: damaged, or not an archive (")) == (3, True)


def test_lists_before_an_invalid_line_are_printed(txl, run_folder, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"candidates": ["a"]}\n{"candidates": 3}\n')
    code, output = txl("score", run_folder, "--candidates=a.jsonl")
    assert (code, len(output.out.splitlines()), len(output.err.splitlines())) == (3, 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--candidates is missing; expected a .jsonl file, or -"),
        (
            ("--candidates=a.txt",),
            "candidates: invalid a.txt; expected a .jsonl file, or - for the standard input",
        ),
        (("--candidates=-", "--weight=-1"), "weight: invalid -1.0; expected a finite number, 0 or"),
        (("--candidates=-", "--cache_theta=9"), "cache_theta: invalid 9.0; expected null without"),
    ],
)
def test_a_file_of_another_kind_or_an_option_without_sense_is_refused(
    refused, run_folder, options, message
):
    code, line = refused("score", run_folder, *options)
    assert (code, line[: len(message)]) == (2, message)


def test_lists_of_the_standard_input_are_those_of_a_file(
    accepted, refused, run_folder, tmp_path, monkeypatch
):
    content = "".join(json.dumps(each) + "\n" for each in LISTS).encode()
    for name in ("a.jsonl", "B.JSONL"):
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")

    def run(path: str, text: bytes = content) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        return accepted("score", run_folder, "--candidates", path).out

    expected = run("a.jsonl")
    assert expected.count("\n") == 3
    assert run("B.JSONL") == run("-") == run("-", b"\xef\xbb\xbf" + content) == expected
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,), daemon=True)
    writer.start()
    assert run("pipe") == expected
    writer.join()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    code, line = refused("score", run_folder, "--candidates=-")
    assert (code, line) == (
        3,
        "the standard input, line 1: candidates: missing; expected a key candidates",
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", ["-", "/dev/stdin"])
def test_lists_are_read_from_the_pipe_of_a_shell(run_folder, processes, path):
    words = ["score", str(run_folder), "--candidates", path]
    process = processes.start(
        [sys.executable, "-m", "txl_lightning", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate(b'{"candidates": ["a", "b"]}\n' * 2)
    assert out.count(b'"best"') == 2


@pytest.mark.parametrize("scores", [[3.5, 9.0], [-3.5, 1e-3]], ids=str)
def test_costs_in_place_of_log_probabilities_are_refused(refused, run_folder, tmp_path, scores):
    line = json.dumps({"candidates": ["a", "b"], "scores": scores})
    (tmp_path / "a.jsonl").write_text(line)
    message = f"scores: invalid {max(scores)}; expected log-probabilities, 0 or less; negate costs"
    assert refused("score", run_folder, "--candidates=a.jsonl") == (
        3,
        f"a.jsonl, line 1: {message}",
    )


@pytest.mark.parametrize("identifier", ["NaN", "1e400", "-Infinity"])
def test_an_id_that_is_no_finite_number_is_refused(refused, run_folder, tmp_path, identifier):
    (tmp_path / "a.jsonl").write_text(f'{{"candidates": ["a"], "id": {identifier}}}')
    code, line = refused("score", run_folder, "--candidates=a.jsonl")
    message = f"a.jsonl, line 1: id: invalid {float(identifier)}; expected a finite number, or a"
    assert (code, message in line) == (3, True), line


@pytest.mark.parametrize("scores", [[0.0, -1.0], [1e-7, -2.0]], ids=str)
def test_a_score_of_0_but_for_rounding_is_a_log_probability(run_score, scores):
    [record] = run_score([{"candidates": ["a", "a"], "scores": scores}])
    assert record["best"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--end", r"\n"],
            r"end: \n is a backslash and n, not a line end, which bash writes as $'\n'",
        ),
        (
            ["--context", r"a\tb"],
            r"context: \t is a backslash and t, not a tab, which bash writes as",
        ),
        (["--end", "\n"], None),
        (["--end", r"\d"], None),
    ],
    ids=str,
)
def test_an_escape_that_stays_two_characters_is_said(
    accepted, run_folder, tmp_path, options, message
):
    (tmp_path / "a.jsonl").write_text('{"candidates": ["a"]}')
    err = accepted("score", run_folder, "--candidates=a.jsonl", *options).err
    assert err == "" if message is None else err.startswith(message)


def test_the_weight_acts_only_on_lists_with_scores(run_score):
    lists = [{"candidates": ["to be", "tobe", "x"]}]
    [plain] = run_score(lists)
    [weighted] = run_score(lists, "--weight=0")
    assert weighted == plain
    nats = [sum(each) if isinstance(each, list) else each for each in plain["nats"]]
    assert plain["best"] == nats.index(min(nats)) != 0


def test_each_line_is_scored_after_those_before(accepted, run_folder, tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"\xef\xbb\xbfto be\r\n\nor not")
    options = "--surprisal=true", "--mem_len=99"
    records = [
        json.loads(line)
        for line in accepted("score", run_folder, "--lines", path, *options).out.splitlines()
    ]
    [first] = sum_nats(run_folder, 99, "\n", ["to be\n"])
    [third] = sum_nats(run_folder, 99, "\nto be\n\n", ["or not\n"])
    assert [record["line"] for record in records] == [1, 2, 3]
    assert [record["tokens"] for record in records] == [6, 1, 7]
    assert records[0]["nats"] == pytest.approx(first, abs=1e-4)
    assert records[2]["nats"] == pytest.approx(third, abs=1e-4)
    assert [word for word, _ in records[2]["words"]] == ["or", " not", "\n"]


def test_lines_are_those_of_documents_from_a_file_a_packed_one_and_a_pipe(
    accepted, run_folder, tmp_path, monkeypatch
):
    texts = {"a\n": 2, "b\r\n": 2, "\r": 1, "c\x0bd\x85e\u2028f\r": 11, "g": 2}
    content = "".join(texts).encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for path in ("a.txt", "a.txt.gz", "-"):
        shown = accepted("score", run_folder, "--lines", path).out.splitlines()
        assert [json.loads(line)["tokens"] for line in shown] == [*texts.values()]
    # Not closed with the last line.
    assert sys.stdin.read() == ""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lists_and_json_lines_end_as_those_of_training(accepted, run_folder, tmp_path, end):
    texts = ["a", "b\x85c\u2028d"]
    for option, record in (
        ("candidates", {"candidates": texts}),
        ("lines", {"text": texts[1]}),
    ):
        line = json.dumps(record, ensure_ascii=False)
        (tmp_path / "a.jsonl").write_text(f"{line}{end}{end}{line}", newline="")
        shown = accepted("score", run_folder, f"--{option}=a.jsonl").out.split("\n")
        assert [bool(each) for each in shown] == [True, True, False]


@pytest.mark.slow
def test_a_line_of_a_pipe_is_answered_before_the_next_one_comes(run_folder, processes):
    command = [sys.executable, "-m", "txl_lightning", "score", str(run_folder), "--lines", "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        for number in (1, 2):
            process.stdin.write("to be\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["line"] == number
        process.stdin.close()
    assert process.returncode == 0


def test_lines_beside_candidates_are_refused(refused, run_folder):
    code, message = refused("score", run_folder, "--lines=-", "--candidates=-")
    assert (code, message.count("\n")) == (2, 0)
    assert "--lines: given with --candidates" in message
