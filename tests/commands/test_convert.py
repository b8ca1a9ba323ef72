"""convert: any supported checkpoint becomes a folder that every command reads."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from txl_lightning import stream_nats
from txl_lightning.checkpoints import load, load_checkpoint
from txl_lightning.commands.convert import fill_folder, is_fillable
from txl_lightning.convert import load_any_checkpoint, load_huggingface, load_original
from txl_lightning.files import write_text

GOLDEN = Path(__file__).parents[1] / "golden"
NVIDIA = GOLDEN / "nvidia" / "checkpoint_best.pt"
UNVERIFIED = ".*another code's files have no checksum"
pytestmark = pytest.mark.filterwarnings(f"ignore:{UNVERIFIED}")


@pytest.fixture
def original(tmp_path):
    """Load a network of the original, and write its weights and keywords to files."""
    with np.load(GOLDEN / "original" / "adaptive_div2_untied_projs.npz") as npz:
        weights = {n[3:]: torch.from_numpy(npz[n]) for n in npz.files if n.startswith("sd.")}
        args = str(npz["config"])
    torch.save(weights, tmp_path / "sd.pt")
    apart = {name: tensor.clone() for name, tensor in weights.items()}
    save_file(apart, tmp_path / "sd.safetensors")
    (tmp_path / "args.json").write_text(args)
    return load_original(weights, json.loads(args))


def has_equal_nats(actual, expected) -> bool:
    tokens = torch.randint(expected.config.n_token, (90,))
    nats = (stream_nats(net, tokens, batch_size=2, tgt_len=9) for net in (actual, expected))
    return torch.equal(*nats)


def test_original_state_dict_is_converted_to_our_folder_and_to_hugging_face(txl, original):
    code, output = txl("convert", "sd.pt", "--args=args.json", "--out=ours")
    assert (code, output.err.split(":")[0]) == (0, "warning")
    tgt_len = json.loads(Path("args.json").read_text())["tgt_len"]
    assert f"it was made for --data.tgt_len {tgt_len}" in output.out
    assert has_equal_nats(load_checkpoint(Path("ours")).build_network(), original)
    assert txl("convert", "ours", "--out=theirs", "--to=huggingface")[0] == 0
    with pytest.warns(UserWarning, match=f"theirs: cannot be verified{UNVERIFIED}"):
        assert txl("convert", "theirs", "--out=back")[0] == 0
    assert has_equal_nats(load_checkpoint(Path("back")).build_network(), original)
    code, output = txl("generate", "--ckpt_path=ours")
    assert code == 4
    assert "ckpt_path: ours has no vocabulary; convert with --vocab" in output.err


def test_a_folder_of_hugging_faces_format_is_refused_with_the_command_that_converts_it(
    txl, refused, checkpoint
):
    assert txl("convert", checkpoint, "--out=theirs", "--to=huggingface")[0] == 0
    expected = "not in our format; txl-lightning convert theirs --out NEW"
    assert refused("evaluate", "theirs") == (4, f"theirs/config.json: {expected}")


def test_run_is_converted_to_our_folder_and_to_hugging_face(txl, checkpoint):
    net, vocab = load(checkpoint)
    for to, load_from in (("txl", load), ("huggingface", load_huggingface)):
        assert txl("convert", checkpoint, "--out", to, "--to", to)[0] == 0
        assert has_equal_nats(load_from(Path(to))[0], net)
    assert load_checkpoint(Path("txl")).load_vocabulary() == vocab


def test_nvidias_checkpoint_comes_with_words_and_generates(txl):
    code, output = txl("convert", NVIDIA, "--out=ours")
    assert (code, output.err) == (0, "")
    net, vocab = load(Path("ours"))
    assert has_equal_nats(net, load_any_checkpoint(NVIDIA)[0])
    prompt = " ".join(vocab.words[3:6])
    code, output = txl("generate", "--ckpt_path=ours", "--prompt", prompt)
    assert (code, output.out.startswith(prompt)) == (0, True)
    assert set(output.out.split()) <= set(vocab.words)


def test_given_vocabulary_replaces_the_checkpoints(txl, original):
    words = [f"w{n}" for n in range(original.config.n_token - 1)]
    Path("words.txt").write_text("\n".join([*words, "<unk>"]))
    options = ("--args=args.json", "--vocab=words.txt", "--out=ours")
    code, output = txl("convert", "sd.safetensors", *options)
    assert (code, output.err) == (0, "")
    net, vocab = load(Path("ours"))
    assert has_equal_nats(net, original)
    assert vocab.words == (*words, "<unk>")


@pytest.mark.parametrize("to", ["txl", "huggingface"])
def test_model_card_has_the_known_facts_and_how_to_load_it(txl, accepted, checkpoint, to):
    output = accepted("convert", checkpoint, "--out=a folder", "--to", to)
    command = "hf upload 'YOUR_NAME/a folder' 'a folder'"
    last = f"to publish it, add a licence to a folder/README.md, and: {command}"
    assert output.out.splitlines()[-1] == last
    _, header, text = Path("a folder/README.md").read_text().split("---\n", 2)
    libraries = {"txl": "txl-lightning", "huggingface": "transformers"}
    assert yaml.safe_load(header)["library_name"] == libraries[to]
    assert {"license", "language"} & yaml.safe_load(header).keys() == set()
    assert "# license: " in header
    facts = dict(re.findall(r"^\| (\w[\w ]*) \| (.+) \|$", text, re.MULTILINE))
    assert facts["Parameters"] == f"{sum(p.numel() for p in load(checkpoint)[0].parameters()):,}"
    assert facts["Vocabulary"] == "256 bytes"
    assert facts["Training"].endswith(" steps of 4 rows of 8 tokens")
    assert re.fullmatch(r"letters\.txt \(fingerprint \w{16}\)", facts["Trained on"])
    assert re.fullmatch(r"\d\.\d{4} bits per byte", facts["Validation"])


@pytest.mark.filterwarnings("ignore")
def test_the_hubs_own_parser_accepts_the_card(accepted, checkpoint):
    hub = pytest.importorskip("huggingface_hub")
    accepted("convert", checkpoint, "--out=ours")
    meta = hub.ModelCard(Path("ours/README.md").read_text()).data.to_dict()
    assert (meta["library_name"], meta["pipeline_tag"]) == ("txl-lightning", "text-generation")


@pytest.fixture
def text_options(txl, text_file):
    """A converted network in `ours`, and the options of a text of its words."""
    assert txl("convert", NVIDIA, "--out=ours")[0] == 0
    _, vocab = load(Path("ours"))
    words = np.random.default_rng(0).choice(vocab.words[1:20], 3000)
    text_file.write_text(" ".join(words) + "\n")
    return [f"--data.path={text_file}", "--trainer.accelerator=cpu", "--data.batch_size=4"]


def test_folder_is_measured_on_a_text_in_its_own_words(accepted, text_options, text_file):
    output = accepted("test", "--ckpt_path=ours", "--data.tgt_len=16", *text_options)
    net, vocab = load(Path("ours"))
    text = text_file.read_text()
    ids = vocab.encode_text(text[int(len(text) * 0.95) :].rstrip("\n"))
    # The end of the last line is also a word.
    ids = np.append(ids, vocab.words.index("<eos>"))
    expected = stream_nats(net, ids, batch_size=4, tgt_len=16).mean().item()
    [nats] = re.findall(r"^test/nats +([\d.]+)$", output.out, re.MULTILINE)
    assert float(nats) == pytest.approx(expected, abs=6e-5)


@pytest.mark.slow
def test_training_begins_with_the_weights_of_a_folder_and_resumes(accepted, text_options):
    options = ["--data.tgt_len=16", "--trainer.max_steps=2", "--trainer.val_check_interval=2"]
    options += ["--model.optim.lr=0.000000001", "--model.net.dropout=0", *text_options]
    accepted("fit", "--ckpt_path=ours", *options)
    run = Path("runs", "version_0")
    net, vocab = load(run / "checkpoints" / "last.ckpt")
    ours, own = load(Path("ours"))
    assert vocab == own
    torch.testing.assert_close(net.state_dict(), ours.state_dict(), rtol=0, atol=1e-7)
    more = ["--trainer.max_steps=3", "--resume=must"]
    accepted("fit", "--config", run / "config.yaml", *more)


@pytest.mark.slow
def test_text_or_size_that_does_not_fit_the_folder_is_refused(txl, text_options):
    options = ("--ckpt_path=ours", *text_options)
    code, output = txl("fit", *options, "--model.net.n_layer=5")
    assert (code, "model.net.n_layer: invalid 5; expected 2" in output.err) == (2, True)
    code, output = txl("test", *options, "--data.vocab=bytes")
    assert (code, "data.vocab: the checkpoint's is" in output.err) == (3, True)
    Path("ours", "vocab.json").unlink()
    code, output = txl("test", *options)
    assert (code, "damaged: it, or vocab.json, was changed" in output.err) == (4, True)


@pytest.mark.parametrize("to", ["txl", "huggingface"])
@pytest.mark.parametrize("exists", [False, True])
def test_convert_to_a_full_disk_can_be_tried_again(txl, checkpoint, limit_file_size, to, exists):
    before = {*Path().iterdir()}
    if exists:
        Path("o").mkdir()
    # The vocabulary fits, the weights do not.
    with limit_file_size(4000):
        code, output = txl("convert", checkpoint, "--out=o", f"--to={to}")
    assert (code, "cannot be written (File too large; " in output.err) == (6, True), output.err
    assert {*Path().iterdir()} == before
    assert txl("convert", checkpoint, "--out=o", f"--to={to}")[0] == 0
    assert not list(Path("o").glob(".*"))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([NVIDIA], 2, "--out is missing; expected the folder"),
        ([NVIDIA, "--out=."], 2, "out: . is not empty; give a new or empty folder"),
        (["none.pt", "--out=o"], 2, "none.pt: no such file"),
        (["sd.pt", "--out=o"], 2, "args: missing for the state_dict sd.pt"),
        (["sd.pt", "--out=o", "--args=none.json"], 2, "none.json: no such file"),
        (["sd.pt", "--out=o", "--args=sd.pt"], 4, "sd.pt: damaged, or not JSON"),
        (["sd.pt", "--out=o", "--args=few.json"], 4, "sd.pt: args: n_token, n_layer, n_head"),
        (["sd.pt", "--out=o", "--args=args.json", "--vocab=args.json"], 3, "vocab: args.json: "),
        ([NVIDIA, "--out=o", "--to=keras"], 2, "to: invalid keras"),
        (["empty", "--out=o"], 4, "empty: no checkpoint in this folder; expected a"),
        (["other", "--out=o"], 4, "other/config.json: model_type: invalid bert"),
        (["list.pt", "--out=o"], 4, "list.pt: not a state_dict"),
        (["nested.pt", "--out=o"], 4, "nested.pt: not a state_dict; expected tensors by name; no "),
        (["nan.pt", "--out=o", "--args=args.json"], 5, "nan.pt: values that are not finite: head."),
        (["inf.pt", "--out=o", "--args=args.json"], 5, "inf.pt: values that are not finite: head."),
    ],
)
@pytest.mark.usefixtures("original")
def test_mistake_is_one_line_that_names_it(refused, options, code, message):
    Path("empty").mkdir()
    Path("other").mkdir()
    Path("other", "config.json").write_text('{"model_type": "bert"}')
    Path("few.json").write_text('{"dropout": 0.1}')
    torch.save([1, 2], "list.pt")
    weights = torch.load("sd.pt")
    torch.save({"model": weights}, "nested.pt")
    for value in ("nan", "inf"):
        wrong = {"crit.out_layers.0.bias": weights["crit.out_layers.0.bias"].clone()}
        wrong["crit.out_layers.0.bias"][3] = float(value)
        torch.save(weights | wrong, f"{value}.pt")
    exit_code, line = refused("convert", *options)
    assert (exit_code, line[: len(message)]) == (code, message)
    assert not Path("o").exists()


COPY_AT_EVERY_LINE = """
import sys
from pathlib import Path
from tests.helpers.interrupting import copy_at_every_line
from txl_lightning import files
from txl_lightning.commands import convert

def write(part):
    for name in ("config.json", "model", "vocab"):
        files.write_text("whole", part / name)

act = lambda copy: convert.fill_folder(copy / "filled", write)
copy_at_every_line(act, Path(sys.argv[1]), files, convert)
"""


@pytest.mark.slow
def test_a_process_killed_at_any_line_leaves_a_folder_that_can_be_filled_again(tmp_path, processes):
    (tmp_path / "place").mkdir()
    done = processes.run([sys.executable, "-c", COPY_AT_EVERY_LINE, tmp_path / "place"])
    assert done.returncode == 0, done.stderr
    folders = sorted(tmp_path.glob("place-*/filled"))
    assert len(folders) > 10
    for folder in folders[:-1]:
        # Whole where its config is, which is moved last.
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        assert "config.json" not in names or len(names) == 3
        assert is_fillable(folder) or len(names) == 3
        fill_folder(folder, lambda part: write_text("again", part / "config.json"))
        assert not list(folder.glob(".*"))
