"""Models of transformers as networks: families, masks, resume, commands, weights of a folder."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

import txl_lightning
from docs import make_families
from docs.make_families import Candidate, build_candidate, check_family
from txl_lightning import Sessions
from txl_lightning.checkpoints.loading import load_checkpoint
from txl_lightning.data.vocab import Bytes
from txl_lightning.errors import CheckpointError
from txl_lightning.model import EvalLengths
from txl_lightning.model.contract_check import randomize_copy
from txl_lightning.networks.transformers_config import FAMILIES, HuggingFaceConfig
from txl_lightning.training.optimizers import OptimConfig, make_optimizer
from txl_lightning.training.ranks import FSDP2Strategy, shard_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*cannot be verified. files of transformers have no"),
]
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 2}
NETS = {
    "llama": SIZES,
    "mamba2": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 4}
    | {"head_dim": 16, "n_groups": 1, "chunk_size": 5},
}  # fmt: skip
"""A family with keys and values, and one with states."""
WINDOW = SIZES | {"num_key_value_heads": 4, "sliding_window": 25}
CLOSE = {"rtol": 1e-3, "atol": 1e-4}  # norms and recurrences of transformers are in float32
TEXT = "".join(f"{n} times {n} is {n * n}, and half of that is {n * n / 2}.\n" for n in range(999))
FIT = ["fit", "--data.path", "my.txt", "--data.vocab", "bytes", "--data.tgt_len", "16"]
FIT += ["--data.batch_size", "2", "--trainer.accelerator", "cpu", "--plan.minutes", "null"]


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a command in a folder with a text."""
    (tmp_path / "my.txt").write_text(TEXT)

    def run_command(*words, returncode=0):
        command = [sys.executable, "-m", "txl_lightning", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == returncode, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run_command


def name_network(family):
    settings = json.dumps(NETS[family])
    words = ["--model.net", "HuggingFace", "--model.net.model_type", family]
    return [*words, "--model.net.settings", settings, "--model.net.mem_len", "24"]


# Families


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_that_is_listed_passes_the_checker(family):
    check_family(build_candidate(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_and_softmax_of_a_family_neither_decay_nor_are_orthogonalized(family):
    net = build_candidate(family)
    decayed, rest = make_optimizer(OptimConfig("muon", weight_decay=0.1), net).param_groups
    assert decayed["params"]
    for module in (net.model.get_input_embeddings(), net.model.get_output_embeddings()):
        assert not [weight for weight in decayed["params"] if weight is module.weight]
        assert [weight for weight in rest["params"] if weight is module.weight]


def test_the_table_of_families_is_that_of_the_checker():
    table = make_families.make_table()
    assert table in make_families.PAGE.read_text(), "run python docs/make_families.py"
    passed = [row.split("`")[1] for row in table.splitlines() if row.endswith("| yes |")]
    assert sorted(passed) == list(FAMILIES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hiden_size": 8}, "settings.hiden_size: unknown"),
        ({"vocab_size": 5}, "settings.vocab_size: invalid 5; expected 256 or more"),
        ({"hidden_size": "a"}, "settings: refused by transformers: "),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_parameters: invalid d",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        HuggingFaceConfig(settings=SIZES | settings).build()
    assert "\n" not in str(error.value)


# Reading, compared with transformers' own


@pytest.fixture(params=["gemma2", "mistral", "qwen3_next", "mamba2"])
def net(request):
    return randomize_copy(build_candidate(request.param))


def draw(*shape):
    return torch.randint(13, shape, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_logits_are_those_of_transformers_for_a_whole_text(net):
    tokens = draw(2, 19)
    # Some families return logits in float32.
    theirs = net.model(tokens, use_cache=False).logits.to(net(tokens)[0])
    torch.testing.assert_close(net(tokens)[0], theirs, **CLOSE)
    parts = []
    memory = net.empty_memory(2)
    for part in tokens.split([7, 1, 11], dim=1):
        logits, memory = net(part, memory)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), theirs, **CLOSE)


@torch.no_grad()
def test_documents_of_any_length_are_read_as_if_each_were_alone(net):
    """Documents begin in the middle of segments, at another token in each row."""
    tokens = draw(3, 24)
    starts = [[0, 5, 17], [0], [0, 16]]
    doc_pos = torch.arange(24).repeat(3, 1)
    for row, begins in enumerate(starts):
        for start in begins:
            doc_pos[row, start:] = torch.arange(24 - start)
    parts = []
    memory = net.empty_memory(3)
    for part in (slice(8), slice(8, 16), slice(16, 24)):
        logits, memory = net(tokens[:, part], memory, doc_pos[:, part])
        parts.append(logits)
    for row, begins in enumerate(starts):
        for start, stop in zip(begins, [*begins[1:], 24], strict=True):
            alone = net.model(tokens[row : row + 1, start:stop], use_cache=False).logits
            actual = torch.cat(parts, 1)[row : row + 1, start:stop]
            torch.testing.assert_close(actual, alone.to(actual), **CLOSE)


@torch.no_grad()
def test_a_memory_that_is_cut_gives_what_a_text_of_its_tokens_gives():
    """One layer: keys of a token depend on that token alone."""
    config = Candidate(13, "llama", SIZES | {"num_hidden_layers": 1}, mem_len=6)
    net = randomize_copy(config.build())
    tokens = draw(2, 23)
    memory = net.empty_memory(2)
    for part in tokens[:, :18].split(5, dim=1):
        _, memory = net(part, memory)
    assert memory.n_kept == 6
    logits, _ = net(tokens[:, 18:], memory)
    expected, _ = net(tokens[:, 12:], net.empty_memory(2, EvalLengths(mem_len=99)))
    torch.testing.assert_close(logits, expected[:, 6:], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("n_token", [1, 5])
def test_a_call_does_not_change_the_memory_that_it_reads(net, n_token):
    _, memory = net(draw(2, 7))
    before = {name: each.clone() for name, each in memory.tensors().items()}
    net(draw(2, n_token), memory)
    torch.testing.assert_close(memory.tensors(), before, rtol=0, atol=0)


def test_a_gradient_goes_through_the_memory_as_in_one_segment(net):
    tokens = draw(2, 14)
    targets = draw(2, 14)
    whole, _ = net.loss(tokens, targets)
    parts = []
    memory = net.empty_memory(2).keep_gradient()
    for part in (slice(5), slice(5, 6), slice(6, 14)):
        nats, memory = net.loss(tokens[:, part], targets[:, part], memory)
        parts.append(nats)
    weights = [each for each in net.parameters() if each.requires_grad]
    for expected, actual in zip(
        torch.autograd.grad(whole.sum(), weights, materialize_grads=True),
        torch.autograd.grad(torch.cat(parts, 1).sum(), weights, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "settings"),
    [("mistral", WINDOW), ("mamba2", NETS["mamba2"])],
)
def test_nats_of_sessions_do_not_depend_on_parts(family, settings):
    net = HuggingFaceConfig(model_type=family, settings=settings, mem_len=24).build()
    sessions = Sessions(randomize_copy(net), Bytes())
    whole, one, other = [sessions.open() for _ in range(3)]
    expected = [token.nats for token in whole.feed(TEXT[:150])[1:]]
    first = sessions.feed_each([one, other], [TEXT[:40], TEXT[:7]])[0]
    last = sessions.feed_each([other, one], [TEXT[7:30], TEXT[40:150]])[1]
    actual = [token.nats for token in (first + last)[1:]]
    torch.testing.assert_close(actual, expected, **CLOSE)


def test_sessions_refuse_a_model_whose_attention_has_no_window():
    net = HuggingFaceConfig(model_type="llama", settings=SIZES, mem_len=24).build()
    with pytest.raises(ValueError, match="but tokens may see more than 24 "):
        Sessions(net, Bytes())


@pytest.mark.parametrize(("position", "n_warning"), [(1 << 17, 1), ((1 << 17) - 9000, 0)])
def test_positions_that_float32_rounds_are_told_once(position, n_warning, capsys):
    net = HuggingFaceConfig(13, "llama", SIZES | {"num_hidden_layers": 1}, mem_len=1).build()
    memory = net.empty_memory(1)
    memory = replace(memory, position_B=memory.position_B + position)
    with torch.no_grad():
        for part in draw(1, 16400).split(410, dim=1)[:21]:
            _, memory = net(part, memory)
        net.n_unchecked = 1 << 13
        net(draw(1, 3), memory)
    assert capsys.readouterr().err.count("more than 131,072 tokens") == n_warning


def list_saved(node, seen):
    """Return the tensors that a graph keeps for gradients."""
    if node is None or node in seen:
        return []
    seen.add(node)
    names = [name for name in dir(node) if name.startswith("_saved_")]
    saved = [getattr(node, name) for name in names]
    found = [each for each in saved if isinstance(each, torch.Tensor)]
    for source, _ in node.next_functions:
        found += list_saved(source, seen)
    return found


@pytest.mark.parametrize("family", ["mamba2", "qwen3_next"])
def test_steps_of_one_token_keep_no_copies_of_weights_for_the_gradient(family):
    net = randomize_copy(build_candidate(family))
    memory = net.empty_memory(1)
    for token in draw(1, 3).split(1, dim=1):
        logits, memory = net(token, memory)
        weights = {each.untyped_storage().data_ptr(): each.shape for each in net.parameters()}
        matrices = {tuple(sorted(shape)) for shape in weights.values() if len(shape) == 2}
        saved = list_saved(logits.grad_fn, set())
        large = [each for each in saved if tuple(sorted(each.shape)) in matrices]
        assert large
        assert {each.untyped_storage().data_ptr() for each in large} <= weights.keys()


def test_shards_are_refused_in_one_line():
    net = HuggingFaceConfig(13, "llama", SIZES).build()
    with pytest.raises(ValueError, match=r"^trainer.strategy: invalid fsdp2; expected ddp, as Hug"):
        shard_network(net, FSDP2Strategy(), "32-true")


@pytest.mark.bfloat16
def test_a_network_trains_in_bfloat16():
    net = HuggingFaceConfig(13, "llama", SIZES).build()
    tokens = draw(2, 9)
    with torch.autocast("cpu", torch.bfloat16):
        _, memory = net.loss(tokens, tokens)
        nats, _ = net.loss(tokens, tokens, memory)
    nats.mean().backward()
    assert nats.dtype is torch.float32
    assert all(each.grad.isfinite().all() for each in net.parameters())


def test_a_vocabulary_that_is_smaller_than_the_embedding_has_no_other_tokens():
    net = HuggingFaceConfig(13, "llama", SIZES | {"vocab_size": 20}).build()
    assert net(draw(2, 3))[0].shape == (2, 3, 13)
    assert net.model.get_input_embeddings().num_embeddings == 20


# Commands


@pytest.mark.parametrize("family", NETS)
def test_a_killed_run_matches_a_whole_one_and_is_evaluated_and_generates(family, run, tmp_path):
    words = [*FIT, *name_network(family), "--trainer.max_steps", "120"]
    words += ["--checkpoint.every_n_steps", "5", "--trainer.default_root_dir"]
    run(*words, "whole")
    command = [sys.executable, "-m", "txl_lightning", *words, "killed"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    last = Path("version_0", "checkpoints", "last.ckpt")
    while process.poll() is None and not (tmp_path / "killed" / last).is_file():
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -9
    run(*words, "killed", "--resume", "must")
    paths = [tmp_path / root / last for root in ("whole", "killed")]
    whole, killed = (torch.load(path, weights_only=True) for path in paths)
    for find in (lambda saved: saved["state_dict"], lambda saved: saved["txl_lightning"]["memory"]):
        torch.testing.assert_close(find(killed), find(whole), rtol=0, atol=0)
    assert any(name.startswith("0.") for name in whole["txl_lightning"]["memory"])
    assert "bits_per_byte" in run("evaluate", "whole/version_0")
    new = run("generate", "whole/version_0", "--prompt", "3 times", "--max_new_tokens", 5)
    assert new.startswith("3 times")


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a trained model, with a tokenizer of fewer tokens than it has rows."""
    symbols = sorted({*TEXT}, key=TEXT.index)
    tokenizer = Tokenizer(models.BPE({each: n for n, each in enumerate(symbols)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    torch.manual_seed(0)
    settings = AutoConfig.for_model("llama", vocab_size=50, tie_word_embeddings=True, **SIZES)
    model = AutoModelForCausalLM.from_config(settings)
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    # As folders of other tokenizers have; it is not a list of words.
    (tmp_path / "theirs" / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    return tmp_path / "theirs"


def test_weights_of_a_folder_are_evaluated_and_trained_further(folder, run, tmp_path):
    words = ["fit", "--ckpt_path", "theirs", "--data.path", "my.txt", "--data.tgt_len", "16"]
    words += ["--data.batch_size", "2", "--trainer.accelerator", "cpu", "--plan.minutes", "null"]
    words += ["--model.net.mem_len", "24", "--trainer.max_steps", "2", "--model.optim.lr", "1e-9"]
    run(*words)
    last = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    weights = torch.load(last, weights_only=True)["state_dict"]
    theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for name, weight in theirs.items():
        torch.testing.assert_close(weights[f"net.model.{name}"], weight, rtol=0, atol=1e-7)
    shutil.rmtree(folder)
    net, vocab = txl_lightning.load(last)
    assert vocab.n_token == net.config.n_token < 50
    assert vocab.decode(vocab.encode_text("3 times")) == "3 times"


def test_logits_of_a_folder_are_those_of_transformers(folder):
    net, vocab = txl_lightning.load(folder)
    tokens = torch.as_tensor(vocab.encode_text("13 times 13")).long()[None]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = model(tokens).logits[..., : vocab.n_token]
        torch.testing.assert_close(net(tokens)[0], expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "falcon_h1"])
def test_logits_of_a_folder_in_low_precision_are_those_of_transformers(family, dtype, tmp_path):
    """At distances where angles of rounded frequencies are wrong by some radians."""
    randomize_copy(build_candidate(family)).model.to(dtype).save_pretrained(tmp_path)
    net = load_checkpoint(tmp_path).build_network()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").eval()
    assert net.model.dtype is theirs.dtype is dtype
    named = zip(net.model.named_buffers(), theirs.named_buffers(), strict=True)
    for (name, ours), (_, expected) in named:
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, msg=name)
    tokens = draw(1, 900)
    memory = net.empty_memory(1, EvalLengths(mem_len=999))
    _, memory = net(tokens[:, :890], memory)
    logits, _ = net(tokens[:, 890:], memory)
    expected = theirs(tokens).logits[:, 890:]
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_tokens_that_only_pad_are_told_if_no_tokenizer_leaves_them_out(
    has_tokenizer, folder, capsys
):
    if not has_tokenizer:
        (folder / "tokenizer.json").unlink()
    load_checkpoint(folder)
    is_told = "no tokenizer.json: 50 tokens; those that only pad" in capsys.readouterr().err
    assert is_told != has_tokenizer


@pytest.mark.parametrize("size", ["20KB", "1GB"])
def test_the_checksum_of_a_folder_is_of_all_its_weights(size, folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    digests = []
    for _ in range(2):
        model.save_pretrained(tmp_path / "new", max_shard_size=size)
        digests.append(load_checkpoint(tmp_path / "new").sha256)
        with torch.no_grad():
            next(model.parameters()).add_(1)
    assert (tmp_path / "new" / "model.safetensors.index.json").is_file() == (size == "20KB")
    assert digests[0] != digests[1]
    assert len(digests[1]) == 64


def test_a_folder_without_a_weight_is_refused(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"without model.norm.weight; expected all of the"):
        txl_lightning.load(folder)
