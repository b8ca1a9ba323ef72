"""export: programs for torch alone and for ONNX Runtime equal the reference kernel."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from txl_lightning import CorpusDataModule, TransformerXL, TransformerXLConfig
from txl_lightning.checkpoints import save_folder
from txl_lightning.commands.card import write_card
from txl_lightning.data.vocab import Bytes
from txl_lightning.model import EvalLengths

SIZES = {"n_layer": 2, "n_head": 2, "d_model": 8, "mem_len": 6}
NETS = {
    "plain": {},
    "same_length": {"same_length": "mem_len", "clamp_len": 4, "untie_r": True},
    "learned": {"positions": "learned", "clamp_len": 4, "norm": "pre"},
    "shaw": {"positions": "shaw", "clamp_len": 4, "memory_source": "same_layer"},
    "absolute": {"positions": "absolute_learned", "clamp_len": 4},
    "sinusoids": {"positions": "absolute_sinusoidal"},
    "adaptive": {"cutoffs": [20, 90], "div_val": 2},
}
LENGTHS = [1, 2, 5, 6, 7, 40, 1, 3, 13, 6] * 2
RUN_PROGRAM = """
import sys

import torch
from safetensors.torch import load_file, save_file

program = torch.export.load("model.pt2").module()
tensors = load_file(sys.argv[1])
memory = tensors["memory"]
filled = tensors["filled"]
results = {}
for n in range(len(tensors) - 2):
    results[f"logits {n}"], memory, filled = program(tensors[f"tokens {n}"], memory, filled)
save_file({**results, "memory": memory.contiguous(), "filled": filled}, sys.argv[2])
assert "txl_lightning" not in sys.modules
"""


@pytest.fixture
def export(accepted, tmp_path):
    """Export a random network; return it with the reference kernel, and the folder."""

    def run(to: str, *options: str, **changes):
        net = TransformerXL(TransformerXLConfig(**SIZES | changes)).eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        save_folder(net, tmp_path / "folder", Bytes())
        accepted("export", "folder", f"--to={to}", "--out=program", *options)
        same = TransformerXL(replace(net.config, kernel="reference")).eval()
        same.load_state_dict(net.state_dict())
        return same, tmp_path / "program"

    return run


def read_segments(net, n_row: int, mem_len: int | None = None):
    """Return the tokens of 20 segments, their logits, and the last memory.

    One row starts full of numbers that do not count. Each row but the first starts with some
    states.
    """
    memory = net.empty_memory(n_row, EvalLengths(mem_len))
    filled_B = torch.arange(n_row).clamp(max=3)
    start = memory = replace(memory, h_NBMD=torch.randn_like(memory.h_NBMD), filled_B=filled_B)
    segments = [torch.randint(256, (n_row, length)) for length in LENGTHS]
    logits = []
    with torch.no_grad():
        for tokens_BL in segments:
            logits_BLV, memory = net(tokens_BL, memory)
            logits.append(logits_BLV)
    return segments, start, logits, memory


def assert_equal(actual, expected) -> None:
    torch.testing.assert_close(torch.as_tensor(actual), expected, rtol=0, atol=1e-5)


def run_onnx(folder, segments, start):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    state = [start.h_NBMD.numpy(), start.filled_B.numpy()]
    logits = []
    for tokens_BL in segments:
        names = ("tokens", "memory", "filled")
        inputs = dict(zip(names, (tokens_BL.numpy(), *state), strict=True))
        logits_BLV, *state = session.run(None, inputs)
        logits.append(logits_BLV)
    return logits, state


@pytest.mark.slow
@pytest.mark.parametrize("changes", NETS.values(), ids=NETS)
def test_onnx_runtime_equals_the_reference_over_20_segments(export, changes):
    net, folder = export("onnx", **changes)
    for n_row in (1, 3):
        segments, start, expected, memory = read_segments(net, n_row)
        logits, state = run_onnx(folder, segments, start)
        for pair in zip(logits, expected, strict=True):
            assert_equal(*pair)
        assert_equal(state[0], memory.h_NBMD)
        assert state[1].tolist() == memory.filled_B.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [NETS[name] for name in ("plain", "adaptive")], ids=str)
def test_a_process_with_torch_alone_equals_the_reference(export, processes, tmp_path, changes):
    net, folder = export("pt2", "--mem_len=9", **changes)
    segments, start, expected, memory = read_segments(net, 3, mem_len=9)
    tensors = {f"tokens {n}": tokens for n, tokens in enumerate(segments)}
    save_file(tensors | {"memory": start.h_NBMD, "filled": start.filled_B}, tmp_path / "in")
    command = [sys.executable, "-c", RUN_PROGRAM, tmp_path / "in", tmp_path / "out"]
    done = processes.run(command, cwd=folder)
    assert done.returncode == 0, done.stderr
    results = load_file(tmp_path / "out")
    for n, logits_BLV in enumerate(expected):
        assert_equal(results[f"logits {n}"], logits_BLV)
    assert_equal(results["memory"], memory.h_NBMD)
    assert results["filled"].tolist() == memory.filled_B.tolist()


@pytest.mark.slow
def test_export_prints_the_folder_and_its_files(txl, run_folder):
    code, output = txl("export", run_folder, "--to=pt2", "--out=program")
    names = ", ".join(sorted(os.listdir("program")))
    assert (code, output.out) == (0, f"program: {names}\n")


@pytest.mark.slow
@pytest.mark.parametrize("to", ["pt2", "onnx"])
def test_the_code_of_the_card_runs_in_a_process_without_the_package(export, processes, to):
    net, folder = export(to)
    code, _ = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    code += '\nimport json, sys\nassert "txl_lightning" not in sys.modules\n'
    code += "print(json.dumps(logits.tolist()))"
    done = processes.run([sys.executable, "-c", code], cwd=folder)
    assert done.returncode == 0, done.stderr
    _, memory = net(torch.tensor([[0, 1, 0]]))
    expected, _ = net(torch.tensor([[1, 1]]), memory)
    assert_equal(json.loads(done.stdout), expected.detach())


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe"])
def test_the_card_of_a_program_has_code_for_ids_which_are_those_of_the_vocabulary(
    tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    data = CorpusDataModule.from_texts(["Once upon a time"] * 99, "a.jsonl", vocab=name)
    saved = data.vocab.to_json()
    write_card(tmp_path, "program", "pt2", {}, "(1, 1, 1, 1)", json.loads(saved)["kind"])
    (tmp_path / "vocab.json").write_text(saved)
    _, code = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    names = {}
    exec(code, names)
    assert names["ids"] == data.vocab.encode_text("Once").tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out=full",), "out: full is not empty; give a new or empty folder"),
        (("--out=new", "--max_batch=0"), "max_batch: invalid 0; expected at least 1"),
        (("--out=new", "--mem_len=0"), "mem_len: invalid 0; expected at least 1"),
    ],
)
def test_what_cannot_be_exported_is_one_line(refused, run_folder, tmp_path, options, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, line = refused("export", run_folder, *options)
    assert (code, line.startswith(message)) == (2, True), line
    assert not (tmp_path / "new").exists()
