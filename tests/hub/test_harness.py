"""lm-evaluation-harness: our model with memory, and the harness's own backend "hf"."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

import txl_lightning
from txl_lightning import imports
from txl_lightning.checkpoints import save_folder
from txl_lightning.data.store import EvalText
from txl_lightning.data.tokens import TextTokens
from txl_lightning.data.vocab import Bytes
from txl_lightning.errors import CheckpointError, DataError
from txl_lightning.evaluation.protocols import Protocol
from txl_lightning.evaluation.scoring import evaluate
from txl_lightning.hub import TXLForCausalLM
from txl_lightning.hub.harness import HarnessModel

pytestmark = pytest.mark.slow
TEXT = "".join(np.random.default_rng(0).choice([*"abc de,é\n"], 700))
DOCUMENTS = [
    {"text": TEXT, "context": TEXT[:400], "choices": [" cab", "bead", "a"], "answer": 1},
    {"text": TEXT[5:60], "context": "a bead", "choices": ["ab", "e", "ce,"], "answer": 0},
]
TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc}]
""",
    "text": """
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: ["e", "zz"], max_gen_toks: 30, do_sample: false}
metric_list: [{metric: bleu}]
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, repository):
    """A network, a file of documents, and a file for each task: that of the page, and TASKS."""
    folder = tmp_path_factory.mktemp("harness")
    save_folder(make_float_net(), folder / "net", Bytes())
    data = folder / "data.jsonl"
    data.write_text("".join(f"{json.dumps(document)}\n" for document in DOCUMENTS))
    for name, lines in TASKS.items():
        common = f"task: {name}\ndataset_path: json\ntest_split: test\n"
        files = f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        (folder / f"{name}.yaml").write_text(common + files + lines)
    page = (repository / "txl_lightning" / "hub" / "README.md").read_text()
    [task] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (folder / "my_text.yaml").write_text(task.replace("my.jsonl", str(data)))
    # Their backend needs a token that ends a text.
    AutoModelForCausalLM.from_pretrained(folder / "net").save_pretrained(folder / "hf")
    tokenizer = AutoTokenizer.from_pretrained(folder / "net", eos_token="<|end|>")
    tokenizer.save_pretrained(folder / "hf")
    return folder


def make_float_net(**changes) -> txl_lightning.TransformerXL:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "d_model": 8, "mem_len": 50}
    net = txl_lightning.TransformerXL(txl_lightning.TransformerXLConfig(**sizes | changes)).eval()
    for parameter in net.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    # ASCII only, as other bytes it chooses would be no text.
    net.head.out.bias.data[128:] -= 50
    return net


@pytest.fixture
def run(folder):
    """Run the tasks; return metrics by task, and the model's answers by task and document."""

    def run_tasks(model: str, *names: str, **options):
        tasks = TaskManager(include_path=str(folder), include_defaults=False)
        arguments = {"pretrained": str(folder / "net")} | options
        result = simple_evaluate(
            model, arguments, [*names], task_manager=tasks, bootstrap_iters=0, device="cpu"
        )
        samples = {n: [row["resps"] for row in rows] for n, rows in result["samples"].items()}
        return result["results"], samples

    return run_tasks


def total_nats(net, text: str, **lengths) -> tuple[float, int]:
    """Return the sum that `evaluate` has the mean of, and the number of scored tokens."""
    tokens = TextTokens(Bytes().encode_text(text))
    record = evaluate(net, EvalText("a", "t", "f", tokens, Bytes(), 1.0), Protocol(**lengths))
    return record["nats"] * record["tokens_scored"], record["tokens_scored"]


def ask(model: HarnessModel, kind: str, *arguments: tuple):
    requests = [Instance(kind, {}, each, 0) for each in arguments]
    return getattr(model, kind)(requests, disable_tqdm=True)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("lengths", [{}, {"tgt_len": 13, "mem_len": 20, "ext_len": 4}])
def test_scores_of_texts_are_those_of_evaluate(folder, batch_size, lengths):
    net = make_float_net()
    texts = [TEXT, TEXT[100:400], "ab", "a", ""]
    model = HarnessModel(str(folder / "net"), batch_size=batch_size, **lengths)
    scores = ask(model, "loglikelihood_rolling", *[(text,) for text in texts])
    for text, logp in zip(texts[:3], scores[:3], strict=True):
        nats, count = total_nats(net, text, **lengths)
        assert logp / count == pytest.approx(-nats / count, abs=1e-5)
    assert scores[3:] == [0, 0]


def read_logp(net, ids: list[int], tgt_len: int) -> torch.Tensor:
    """Return log p of the token after each of `ids`, read in segments by the network itself."""
    parts = []
    memory = None
    for tokens_BL in torch.tensor([ids]).split(tgt_len, dim=1):
        logits_BLV, memory = net(tokens_BL, memory)
        parts.append(logits_BLV[0].log_softmax(-1))
    return torch.cat(parts)


@pytest.mark.parametrize("batch_size", [1, 4])
@torch.no_grad()
def test_scores_of_continuations_have_the_memory_of_the_whole_context(folder, batch_size):
    net = make_float_net()
    context = TEXT[:400].rstrip()
    model = HarnessModel(str(folder / "net"), batch_size=batch_size, tgt_len=16)
    greedy = [*context.encode()]
    for _ in range(3):
        greedy.append(int(read_logp(net, greedy, 16)[-1].argmax()))
    greedy = bytes(greedy).decode().removeprefix(context)
    pairs = [(context, "bead"), (context, greedy), ("a b ", "cab"), ("", "bead")]
    scores = ask(model, "loglikelihood", *pairs)
    for (context, continuation), (logp, is_greedy) in zip(pairs, scores, strict=True):
        # The harness moves the last space of a context to its continuation.
        start = len((context or "\n").rstrip(" ").encode())
        ids = [*((context or "\n") + continuation).encode()]
        logp_LV = read_logp(net, ids[:-1], 16)[start - 1 :]
        expected = logp_LV.gather(1, torch.tensor(ids[start:])[:, None]).sum().item()
        assert logp == pytest.approx(expected, abs=1e-5 * len(logp_LV))
        assert is_greedy == (continuation == greedy)


def test_continuations_are_our_own_up_to_a_stop_string(folder):
    net = make_float_net()
    model = HarnessModel(str(folder / "net"))
    whole = txl_lightning.generate(net, TEXT, 40, vocab=Bytes(), temperature=0)
    stop = whole[20:23]
    options = {"until": [stop], "max_gen_toks": 40}
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 5, "seed": 3, "max_gen_toks": 9}
    texts = ask(model, "generate_until", (TEXT, options), (TEXT, sampled))
    expected = {"temperature": 0.7, "top_k": 5, "seed": 3}
    assert texts[0] == whole[: whole.index(stop)]
    assert texts[1] == txl_lightning.generate(net, TEXT, 9, vocab=Bytes(), **expected)
    with pytest.raises(ValueError, match="generation_kwargs: invalid num_beams; expected one of"):
        ask(model, "generate_until", (TEXT, {"num_beams": 2}))


def bits_per_byte(prefix: str = "", **lengths) -> float:
    net = make_float_net()
    texts = [document["text"] for document in DOCUMENTS]
    nats = sum(total_nats(net, prefix + text, **lengths)[0] for text in texts)
    return nats / sum(len(text.encode()) for text in texts) / math.log(2)


def test_tasks_run_on_our_model_and_on_the_classes_for_transformers(run, folder):
    tasks = "my_text", "choice", "text"
    ours, answers = run("txl", *tasks, batch_size=2)
    theirs, other = run("hf", *tasks, pretrained=str(folder / "hf"), prefix_token_id=10)
    assert ours["my_text"]["bits_per_byte,none"] == pytest.approx(bits_per_byte(), abs=1e-5)
    one_segment = bits_per_byte("\n", tgt_len=2048)
    assert theirs["my_text"]["bits_per_byte,none"] == pytest.approx(one_segment, abs=1e-5)
    assert other["text"] == answers["text"]
    # The second context fits into one segment.
    pairs = zip(answers["choice"][1], other["choice"][1], strict=True)
    for [(logp, is_greedy)], [(their_logp, is_their_greedy)] in pairs:
        assert float(logp) == pytest.approx(float(their_logp), abs=1e-5)
        assert is_greedy == is_their_greedy


def run_harness(cwd, *words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "txl_lightning.hub.harness", "run", "--model", "txl", *words]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    how = {"cwd": cwd, "env": env, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run([*map(str, command)], **how)


@pytest.mark.parametrize("allowed", [[], ["--allow_imports", "my_package"]])
def test_the_command_line_has_our_model_or_one_of_an_allowed_package(
    folder, tmp_path, own_package, allowed
):
    save_folder(own_package.MyConfig().build(), tmp_path / "own", Bytes())
    source = tmp_path / "own" if allowed else folder / "net"
    words = ["--model_args", f"pretrained={source},tgt_len=64", "--tasks", "choice", *allowed]
    done = run_harness(tmp_path, *words, "--include_path", folder, "--output_path", tmp_path)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.rglob("results_*.json")
    assert json.loads(path.read_text())["results"]["choice"]["acc,none"] in (0, 0.5, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("pretrained=net", 2, "batch_size: invalid auto; expected a whole number, at least 1"),
        ("pretrained=damaged", 4, "pretrained: damaged/config.json: damaged"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_an_exit_code(
    folder, tmp_path, arguments, code, message
):
    (tmp_path / "net").symlink_to(folder / "net")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    batch_size = ["--batch_size", "auto" if code == 2 else "2"]
    words = ["--model_args", arguments, "--tasks", "choice", "--include_path", folder]
    done = run_harness(tmp_path, *words, *batch_size)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert done.stderr.splitlines()[-1].startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [
        ("batch_size", "auto", 1), ("batch_size", 0, 1), ("batch_size", 2.5, 1),
        ("tgt_len", 0, 1), ("tgt_len", "long", 1), ("mem_len", -1, 0), ("ext_len", -1, 0),
    ],
)  # fmt: skip
def test_a_number_that_is_no_count_is_refused_with_its_key(folder, key, value, least):
    expected = f"{key}: invalid {value}; expected a whole number, at least {least}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        HarnessModel(str(folder / "net"), **{key: value})


def test_a_checkpoint_that_does_not_exist_is_refused_with_its_key():
    with pytest.raises(ValueError, match=r"^pretrained: nope: no such file"):
        HarnessModel("nope")


def test_a_folder_without_a_vocabulary_is_refused(tmp_path):
    save_folder(make_float_net(), tmp_path)
    with pytest.raises(DataError, match=r"pretrained: .* has no vocabulary; convert with --vocab"):
        HarnessModel(str(tmp_path))


def test_network_of_a_package_is_scored_and_has_no_class_of_transformers(tmp_path, own_package):
    save_folder(net := own_package.MyConfig().build().eval(), tmp_path / "own", Bytes())
    with pytest.raises(CheckpointError, match=r"may not import my_package\.MyConfig"):
        HarnessModel(str(tmp_path / "own"))
    imports.allow_imports(["my_package"])
    [(logp, _)] = ask(
        HarnessModel(str(tmp_path / "own"), tgt_len=3), "loglikelihood", ("ab", " c de")
    )
    tokens = torch.tensor([[*b"ab c de"]])
    assert logp == pytest.approx(-net.loss(tokens[:, :-1], tokens[:, 1:])[0][0, -5:].sum().item())
    with pytest.raises(ValueError, match=r"own; expected .* MyNetwork does not have this"):
        TXLForCausalLM.from_pretrained(tmp_path / "own")
    with pytest.raises(ValueError, match=r"class_path: invalid my_package\.MyConfig; .* alone"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "own")
