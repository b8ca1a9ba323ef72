"""A network of a user's package, that of docs/own_network.md, has all that a TransformerXL has."""

import importlib
import json
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import txl_lightning
from txl_lightning import KeyValueCache, LanguageModel, OptimConfig, TransformerXLConfig, imports
from txl_lightning.analysis.context_length import score_context
from txl_lightning.checkpoints import load_checkpoint
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.vocab import load_vocabulary
from txl_lightning.model import EvalLengths
from txl_lightning.model.config import describe_config, make_config
from txl_lightning.model.contract import join_rows
from txl_lightning.model.reading import Reader
from txl_lightning.training.callbacks.weight_averaging import WeightAverage
from txl_lightning.training.optimizers import make_optimizer

ALLOW = "--allow_imports=my_package"
NAMED = (ALLOW, "--model.net=my_package.MyConfig", "--model.net.width=12")
REFUSED = "if it is your own, add --allow_imports my_package to the command"
FEW = ("--max_tokens=50", "--batch_size=1")
PACKAGE = Path(__file__).parents[2] / "txl_lightning"


@pytest.fixture
def settings(sizes, text_file) -> list[str]:
    """Options of a small run without those of a TransformerXL."""
    return [*(word for word in sizes if ".net." not in word), f"--data.path={text_file}"]


@pytest.fixture
def make_own(own_package):
    def make(settings=(), **changes) -> LanguageModel:
        config = own_package.MyConfig(width=16, **changes)
        return LanguageModel(config, OptimConfig(lr=1e-2), **dict(settings))

    return make


@pytest.fixture
def net(own_package):
    """A network in float64 without symmetries."""
    return own_package.MyConfig(n_token=11, width=8).build().double().eval()


@pytest.fixture
def fit_own(fit, make_own):
    """Train, always from the same weights."""

    def run(net=(), settings=(), **options):
        torch.manual_seed(1)
        return fit(model=make_own(settings, **dict(net)), **options)

    return run


def test_page_has_few_lines_besides_imports_and_decorators(own_package):
    lines = Path(own_package.__file__).read_text().splitlines()
    others = ("#", "@", "from", "import", "__")
    assert sum(line != "" and not line.startswith(others) for line in lines) <= 45


def test_reader_gives_any_network_the_methods_of_evaluation(net):
    tokens, targets = torch.randint(11, (2, 3, 7))
    reader = Reader(net)
    logits, after = net(tokens, n_reread=2)
    h_BLD, memory = reader.hidden(tokens, reader.empty_memory(3), None, 2)
    assert torch.equal(reader.head(h_BLD), logits)
    assert torch.equal(memory.h_BD, after.h_BD)
    torch.testing.assert_close(
        reader.head.nats(h_BLD, targets), reader.loss(tokens, targets)[0].double()
    )


def test_rows_of_a_memory_are_joined_in_their_dimension(net, make_net):
    for model in (net, make_net(), make_net(mem_len=0)):
        _, memory = model(torch.randint(11, (5, 4)))
        parts = [memory.rows(rows).tensors() for rows in (slice(2), slice(2, 3), slice(3, 5))]
        joined = memory.rows(slice(1)).restore(join_rows(memory.rows(slice(1)), parts))
        for name, tensor in memory.tensors().items():
            assert torch.equal(joined.tensors()[name], tensor)


def test_settings_are_plain_values_and_back(own_package, monkeypatch):
    config = own_package.MyConfig(width=5)
    plain = describe_config(config)
    assert plain == {"class_path": "my_package.MyConfig", "n_token": 256, "width": 5, "mem_len": 1}
    with pytest.raises(ValueError, match=REFUSED):
        make_config(plain)
    imports.allow_imports(["my_package"])
    assert make_config(plain) == config
    for name in ("MyNetwork", "torch", "Nothing"):
        with pytest.raises(ValueError, match="class_path: "):
            make_config({"class_path": f"my_package.{name}"})


def define_class(kind: str, base: type) -> type:
    """Return a class of settings as another place than a module defines it."""

    class Outer:
        class MyConfig(base):
            pass

    if kind != "in a function":
        Outer.MyConfig.__module__ = "my_package" if kind == "in a class" else kind
        Outer.MyConfig.__qualname__ = "Outer.MyConfig" if kind == "in a class" else "MyConfig"
    return Outer.MyConfig


PLACES = ["__main__", "__mp_main__", "in a function", "in a class", "removed"]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("has_module", [True, False])
def test_a_class_that_no_command_can_import_is_warned_of_before_training(
    fit, own_package, kind, has_module
):
    config = own_package.MyConfig if has_module else define_class(kind, own_package.MyConfig)
    model = LanguageModel(config(width=8), OptimConfig(lr=1e-2))
    with warnings.catch_warnings(record=True, action="always") as caught:
        fit(model=model, max_steps=1)
    lines = [str(each.message) for each in caught if "no command can load" in str(each.message)]
    name = imports.name_class(config)
    advice = "define it at the top of a module, and import it from there"
    expected = [f"network: no command can load checkpoints with {name}; {advice}"]
    assert lines == ([] if has_module else expected)


@pytest.mark.parametrize("allowed", [[], ["__main__"], ["tests"]])
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("__main__.MyConfig", "txl_lightning.imports.allow_imports(['__main__']); elsewhere, "),
        ("tests.some.make.<locals>.MyConfig", "defines; define it at the top of a module"),
        ("__main__.make.<locals>.MyConfig", "defines; define it at the top of a module"),
    ],
)
def test_a_class_of_another_process_is_refused_with_advice_that_can_be_followed(
    name, advice, allowed
):
    imports.allow_imports(allowed)
    if name == "__main__.MyConfig" and allowed == ["__main__"]:
        advice = "defines; define it at the top of a module"
    with pytest.raises(ValueError, match="class_path: a setting may not import") as network:
        make_config({"class_path": name})
    with pytest.raises(ValueError, match=r"data\.vocab: a setting may not import") as vocabulary:
        load_vocabulary(json.dumps({"kind": name}))
    for error in (network, vocabulary):
        assert advice in str(error.value)
        assert "the top of a module, and name that in the checkpoint" in str(error.value)


def test_a_class_of_a_notebook_is_loaded_there_and_by_a_new_name_elsewhere(
    fit, own_package, monkeypatch, repository, tmp_path
):
    monkeypatch.chdir(tmp_path)
    own = define_class("__main__", own_package.MyConfig)
    monkeypatch.setattr(sys.modules["__main__"], "MyConfig", own, raising=False)
    with pytest.warns(UserWarning, match="no command can load"):
        run = fit(model=LanguageModel(own(width=8), OptimConfig()), max_steps=1)
    run.trainer.save_checkpoint("best.ckpt", weights_only=True)
    imports.allow_imports(["__main__"])
    with pytest.warns(UserWarning, match="cannot be verified"):
        assert type(txl_lightning.load("best.ckpt")[0].config) is own
    page = (repository / "docs" / "own_network.md").read_text()
    [code] = re.findall(r"```python\n(import torch\n\nsaved = .*?)```", page, re.DOTALL)
    exec(code, {})
    imports.allow_imports(["my_package"])
    with pytest.warns(UserWarning, match="cannot be verified"):
        assert type(txl_lightning.load("renamed.ckpt")[0].config) is own_package.MyConfig


def test_validation_leaves_the_memory_of_training_alone(fit_own):
    never, often = (fit_own(limit_val_batches=n, val_check_interval=2, max_steps=6) for n in (0, 3))
    assert often.losses == never.losses
    assert len(often.val_nats) == 3
    assert torch.equal(often.memory.h_BD, never.memory.h_BD)


@pytest.mark.parametrize(
    "options", [{}, {"precision": "bf16-mixed"}, {"data": {"micro_batches": 2}}]
)
def test_resumed_training_continues_bit_for_bit(fit_own, tmp_path, options):
    whole = fit_own(max_steps=7, save=(tmp_path / "a.ckpt", 3), **options)
    resumed = fit_own(max_steps=7, ckpt_path=tmp_path / "a.ckpt", **options)
    assert resumed.continues(whole)
    assert torch.equal(resumed.memory.h_BD, whole.memory.h_BD)
    assert whole.memory.h_BD.any()


def test_micro_batches_train_as_the_whole_batch_does(fit_own):
    exact = {"precision": "64-true", "max_steps": 5}
    whole, parts = (fit_own(data={"micro_batches": n}, **exact) for n in (1, 3))
    assert parts.losses == pytest.approx(whole.losses, rel=1e-6)
    torch.testing.assert_close(parts.memory.h_BD, whole.memory.h_BD)


def test_mixed_precision_trains_as_float32_does(fit_own):
    exact, mixed = (fit_own(precision=p, max_steps=8) for p in ("32-true", "bf16-mixed"))
    assert mixed.losses == pytest.approx(exact.losses, rel=2e-2)
    assert mixed.losses != exact.losses


def test_softmax_of_an_own_network_does_not_decay(net):
    decaying, rest = make_optimizer(OptimConfig(weight_decay=0.1), net).param_groups
    [weight] = decaying["params"]
    assert (weight is net.cell.weight, rest["weight_decay"]) == (True, 0)


def test_average_of_weights_is_validated_and_saved(fit_own, tmp_path):
    average = WeightAverage(decay=None)
    record = fit_own(max_steps=4, callbacks=[average], save=(tmp_path / "a.ckpt", 4))
    mean = torch.stack([each["cell.weight"] for each in record.weights]).mean(0)
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    torch.testing.assert_close(saved["net.cell.weight"], mean)


def test_parts_of_a_transformer_xl_are_refused_in_one_line(make_own, fit_own, net):
    with pytest.raises(
        ValueError, match="eval_clamp_len: invalid 9; expected null, as MyConfig has"
    ):
        make_own({"eval_clamp_len": 9})
    with pytest.raises(ValueError, match=r"model\.recompute: invalid true; .* MyNetwork does not"):
        fit_own(settings={"recompute": True})


@torch.inference_mode()
def test_network_of_a_derived_config_is_read_with_kept_keys():
    class Derived(TransformerXLConfig):
        pass

    net = Derived(n_token=11, d_model=8, mem_len=9).build().eval()
    tokens = torch.randint(11, (1, 9))
    memory = Reader(net).empty_memory(1)
    assert isinstance(memory, KeyValueCache)
    torch.testing.assert_close(net.loss(tokens, tokens, memory)[0], net.loss(tokens, tokens)[0])


def test_text_is_scored_as_by_the_network_alone(net):
    text = torch.randint(11, (60,))
    nats = txl_lightning.stream_nats(net, text, batch_size=2, tgt_len=7)
    rows = text.view(2, 30)
    torch.testing.assert_close(nats.double(), net.loss(rows[:, :-1], rows[:, 1:])[0].double())
    without = txl_lightning.stream_nats(net, text, batch_size=2, tgt_len=7, mem_len=0)
    torch.testing.assert_close(without[:, :6], nats[:, :6])
    assert not torch.allclose(without[:, 7:], nats[:, 7:])


def test_context_is_all_that_a_window_has(net):
    text = np.random.default_rng(0).integers(0, 11, 40)
    [nats] = score_context(net, text, np.array([30]), 9, tgt_len=4)
    window = torch.from_numpy(text[21:31])[None]
    assert nats == pytest.approx(net.loss(window[:, :-1], window[:, 1:])[0][0, -1].item(), rel=1e-6)


def test_texts_are_continued_as_the_likeliest_tokens_of_the_network(net):
    prompts = [[3, 1, 4, 1, 5], [9, 2]]
    together = txl_lightning.generate(net, prompts, 6, temperature=0)
    for prompt, new in zip(prompts, together, strict=True):
        text = [*prompt]
        for _ in range(6):
            text.append(int(net(torch.tensor([text]))[0][0, -1].argmax()))
        assert new == text[len(prompt) :]


def test_class_of_a_network_is_named_by_options_or_a_config(txl, refused, settings, own_package):
    sys.modules.pop("my_package")
    config = {"model": {"net": {"class_path": "my_package.MyConfig", "width": 12}}}
    Path("own.yaml").write_text(yaml.safe_dump(config))
    Path("short.yaml").write_text("model: {net: my_package.MyConfig}")
    Path("sly.yaml").write_text(yaml.safe_dump(config | {"allow_imports": "my_package"}))
    for words in (NAMED[1:], ["--config=own.yaml"], ["--config=sly.yaml"], ["--config=short.yaml"]):
        code, line = refused("fit", *settings, *words)
        assert (code, REFUSED in line) == (2, True)
    assert "my_package" not in sys.modules
    help_text = txl("fit", *NAMED, "--help")[1].out
    assert ("net.width WIDTH" in help_text, "net.n_layer" in help_text) == (True, False)
    assert re.search(r"--model.net.width WIDTH\s+\(default: \d+\)\n", help_text)
    code, line = refused("fit", *settings, *NAMED, "--model.net.wdth=3")
    assert (code, line) == (2, "unknown option --model.net.wdth; did you mean --model.net.width?")
    runs = [(*NAMED, "--data.tgt_len=8"), (ALLOW, "--config=own.yaml")]
    runs += [(ALLOW, "--config=short.yaml", "--model.net.width=12")]
    for words in runs:
        assert txl("fit", *settings, *words)[0] == 0
    saved = [
        torch.load(f"runs/version_{n}/checkpoints/last.ckpt", weights_only=True) for n in range(3)
    ]
    for other in saved[1:]:
        states = saved[0]["state_dict"], other["state_dict"]
        torch.testing.assert_close(*states, rtol=0, atol=0)
    plain = {"class_path": "my_package.MyConfig", "n_token": 256, "width": 12, "mem_len": 1}
    assert saved[0]["hyper_parameters"]["net"] == plain
    assert saved[0]["txl_lightning"]["environment"]["network"] == "my_package 1.5"


def load_environment() -> dict[str, str]:
    saved = torch.load("runs/version_0/checkpoints/last.ckpt", weights_only=True)
    return saved["txl_lightning"]["environment"]


@pytest.fixture
def own_run(accepted, settings, own_package):
    """The folder of a finished run."""
    accepted("fit", *settings, *NAMED, "--report.html=true", "--report.sample_len=20")
    return "runs/version_0"


def test_checkpoint_is_refused_by_the_name_of_its_class(txl, refused, own_run, own_package):
    hint = f"{REFUSED} (in Python: txl_lightning.imports.allow_imports(['my_package']))"
    hint += " (it was trained with my_package 1.5)"
    sys.modules.pop("my_package")
    commands = ["test", "evaluate", "generate", "recl", "inspect", "convert --out=o"]
    commands += ["score --candidates=some.jsonl", "export"]
    for command, *words in map(str.split, commands):
        code, line = refused(command, own_run, *words)
        assert (code, "best.ckpt: class_path: " in line, hint in line) == (4, True, True), line
    assert "my_package" not in sys.modules
    Path("my_package.py").rename("other.py")
    code, line = refused("evaluate", own_run, ALLOW)
    assert (code, "my_package.MyConfig cannot be imported: No module" in line) == (4, True), line


def test_checkpoint_of_a_package_without_a_version_is_refused_with_its_name(
    txl, refused, settings, own_package
):
    del own_package.__version__
    assert txl("fit", *settings, *NAMED)[0] == 0
    sys.modules.pop("my_package")
    hint = "(it was trained with my_package, version unknown)"
    assert refused("evaluate", "runs/version_0")[1].endswith(hint)


def test_run_is_resumed_and_another_version_of_its_package_is_named(
    txl, refused, own_run, own_package, settings
):
    more = ("--config=runs/version_0/config.yaml", ALLOW, "--resume=auto", "--trainer.max_steps=6")
    own_package.__version__ = "1.6"
    with pytest.warns(match="network: was my_package 1.5, is my_package 1.6"):
        assert txl("fit", *more)[0] == 0
    own_package.__version__ = "1.5"
    # The checkpoint names the class, too.
    other = f"--ckpt_path={own_run}", "--model.net.width=9", "--trainer.max_steps=9"
    for named in ((ALLOW,), NAMED):
        code, line = refused("fit", *settings, *named, *other)
        expected = "model.net.width: invalid 9; expected 12, as in the checkpoint"
        assert (code, expected in line) == (2, True), line


def test_a_setting_that_the_network_refuses_does_not_replace_those_of_the_run(txl, own_run):
    config = Path(own_run, "config.yaml")
    before = config.read_text()
    command = ("fit", ALLOW, f"--config={config}", "--resume=auto", "--trainer.max_steps=6")
    code, output = txl(*command, "--model.recompute=true")
    assert (code, "model.recompute: invalid true" in output.err) == (2, True)
    assert config.read_text() == before
    assert txl(*command)[0] == 0


def test_run_is_measured_compared_and_sampled_by_the_commands(txl, accepted, own_run):
    page = Path(own_run, "report.html").read_text()
    assert "Loss by position" in page
    code, output = txl("evaluate", own_run, ALLOW, "--protocol=single-pass")
    record = json.loads(output.out)
    low, high = record["interval"]["nats"]
    assert (code, low < record["nats"] < high) == (0, True)
    output = accepted("evaluate", own_run, ALLOW, "--protocol=sliding-window", *FEW)
    code, output = txl("test", own_run, ALLOW)
    assert (code, "test/bits_per_byte" in output.out) == (0, True)
    small = ("--step=4", "--max_context=12", "--positions=20")
    assert txl("recl", own_run, ALLOW, *small)[0] == 0
    code, output = txl("inspect", own_run, ALLOW, "--batch_size=2")
    assert (code, "attention distance: this network does not have it" in output.out) == (0, True)
    assert Path(own_run, "inspect", "positions.csv").exists()
    assert txl("compare", own_run, own_run)[0] == 0


def test_generated_text_is_continued(accepted, settings, own_package):
    # Of bytes, some texts are no UTF-8.
    accepted("fit", *settings, *NAMED, "--data.vocab=characters")

    def run(prompt: str, n_token: int) -> str:
        words = (prompt, ALLOW, "--temperature=0", f"--max_new_tokens={n_token}")
        return accepted("generate", "runs/version_0", *words).out.removesuffix("\n")

    assert run(run("tobe", 6), 6) == run("tobe", 12)


def test_optional_parts_are_refused_by_the_commands(refused, own_run):
    for words in (["generate", "--weights=bf16"], ["convert", "--out=o"], ["export"]):
        code, line = refused(words[0], own_run, *words[1:], ALLOW)
        assert (code, "as MyNetwork does not have this" in line) == (2, True), line


def test_candidates_are_scored_as_continuations_of_the_text(accepted, own_run):
    lists = [{"candidates": ["to be", "not"]}, {"candidates": ["that is"]}]
    Path("some.jsonl").write_text("\n".join(map(json.dumps, lists)))
    words = ("score", own_run, ALLOW, "--candidates=some.jsonl", "--context=or ", "--batch_size=1")
    output = accepted(*words)
    first, second = map(json.loads, output.out.splitlines())
    imports.allow_imports(["my_package"])
    model, _ = txl_lightning.load(own_run)
    best = ["to be\n", "not\n"][first["best"]]
    for before, after, nats in (
        *zip(("or ", "or "), ("to be\n", "not\n"), first["nats"], strict=True),
        (f"or {best}", "that is\n", second["nats"][0]),
    ):
        tokens = torch.tensor([[*(before + after).encode()]])
        expected = model.loss(tokens[:, :-1], tokens[:, 1:])[0][0, len(before) - 1 :]
        assert nats == pytest.approx(expected.sum().item(), rel=1e-5)


def test_run_is_resumed_on_another_machine_from_its_mirror(txl, settings, own_package, tmp_path):
    mirror = (*NAMED, f"--checkpoint.mirror=file://{tmp_path}/mirror")
    assert txl("fit", *settings, *mirror)[0] == 0
    Path("runs").rename("lost")
    code, output = txl("fit", *settings, *mirror, "--resume=auto", "--trainer.max_steps=6")
    assert (code, "resume: runs/version_0/checkpoints/last.ckpt" in output.err) == (0, True), output
    saved = torch.load("runs/version_0/checkpoints/last.ckpt", weights_only=True)
    assert saved["global_step"] == 6


def test_only_the_network_knows_the_names_of_its_states():
    own = re.compile(r"\b(h_NBMD|[kv]_NHB\w+|Memory\(|KeyValueCache)")
    for path in sorted(PACKAGE.rglob("*.py")):
        # An export and transformers' classes are of a TransformerXL.
        is_known = {"model", "__init__.py", "export.py", "causal_lm.py"} & {*path.parts}
        if not is_known:
            assert not own.findall(path.read_text()), path


SCHEME = """
__version__ = "1.5"
import torch
from torch import nn
from txl_lightning.model.positions import DistanceTerms

class Slopes(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.slope_NH = nn.Parameter(torch.zeros(config.n_layer, config.n_head))

    def forward(self, distance_T):
        return [DistanceTerms(b_TH=-slope_H * distance_T[:, None]) for slope_H in self.slope_NH]
"""


def test_position_scheme_of_a_package_is_trained_saved_and_loaded(txl, refused, small, own_package):
    Path("my_package.py").write_text(SCHEME)
    sys.modules.pop("my_package")
    scheme = "--model.net.positions=my_package.Slopes"
    code, line = refused("fit", *small, scheme)
    assert line.startswith("model.net.positions: a setting may not")
    assert (code, REFUSED in line) == (2, True)
    code, line = refused("fit", *small, "--model.net.positions=slopes")
    assert (code, "model.net.positions: invalid slopes; expected sinusoidal, " in line) == (2, True)
    assert txl("fit", *small, scheme, ALLOW)[0] == 0
    code, line = refused("evaluate", "runs/version_0")
    assert (code, "best.ckpt: positions: a setting may not import" in line) == (4, True), line
    imports.allow_imports(["my_package"])
    assert load_environment()["positions"] == "my_package 1.5"
    model, vocab = txl_lightning.load("runs/version_0")
    assert model.positions.slope_NH.any()
    text = vocab.encode_text("abcdefghijklmnopqrstuvwxyz")
    nats = txl_lightning.stream_nats(model, text, batch_size=1, tgt_len=5, mem_len=30)
    tokens = torch.from_numpy(text.astype("int64"))[None]
    memory = model.empty_memory(1, EvalLengths(30))
    torch.testing.assert_close(nats, model.loss(tokens[:, :-1], tokens[:, 1:], memory)[0])


VOCABULARY = """
__version__ = "1.5"
from dataclasses import dataclass
import numpy as np
from txl_lightning.data.vocab import Vocabulary

@dataclass(frozen=True)
class Letters(Vocabulary):
    first: str = "?"
    unit = "letter"
    n_token = 26

    @classmethod
    def from_documents(cls, documents):
        chunks = (chunk for document in documents for chunk in document.chunks())
        return cls(chr(min(map(min, chunks))))

    def encode(self, document):
        return (self.encode_text(chunk.decode()) for chunk in document.chunks())

    def encode_text(self, text, where="text"):
        return np.frombuffer(text.encode(), np.uint8) - ord(self.first)

    def decode_stream(self, ids):
        return (chr(ord(self.first) + index) for index in ids)
"""


def test_vocabulary_of_a_package_encodes_saves_and_decodes(txl, refused, small, own_package):
    Path("my_package.py").write_text(VOCABULARY)
    sys.modules.pop("my_package")
    vocab = "--data.vocab=my_package.Letters"
    code, line = refused("fit", *small, vocab)
    assert (code, "data.vocab: a setting may not import my_package.L" in line) == (2, True), line
    assert txl("fit", *small, vocab, ALLOW)[0] == 0
    assert load_environment()["vocabulary"] == "my_package 1.5"
    assert json.loads(Path("runs/version_0/vocab.json").read_text()) == {
        "kind": "my_package.Letters",
        "first": "a",
    }
    code, line = refused("generate", "runs/version_0")
    assert (code, "best.ckpt: data.vocab: a setting may not import" in line) == (4, True), line
    code, output = txl("generate", "runs/version_0", ALLOW, "--prompt=ab", "--max_new_tokens=5")
    assert (code, output.out[:2], output.out.strip().isalpha()) == (0, "ab", True), output


def test_a_changed_vocabulary_of_a_package_encodes_again(own_package, text_file, monkeypatch):
    monkeypatch.chdir(text_file.parent)
    imports.allow_imports(["my_package"])
    settings = {"path": str(text_file), "vocab": "my_package.Letters"}
    ids = []
    fingerprints = []
    changed = VOCABULARY.replace("ord(self.first)\n\n", "ord(self.first) ^ 1\n\n")
    for code in (VOCABULARY, VOCABULARY + "# A comment\n", changed):
        Path("my_package.py").write_text(code)
        sys.modules.pop("my_package", None)
        importlib.invalidate_caches()
        store = DataConfig(**settings).open_text()
        ids.append(store.ids("train")[:50].tolist())
        fingerprints.append(store.fingerprint)
        # A saved one has its code, too.
        Path("vocab.json").write_text(store.vocab.to_json())
        saved = DataConfig(**settings | {"vocab": "vocab.json"}).open_text()
        assert saved.ids("train")[:50].tolist() == ids[-1]
    assert ids[0] == ids[1] != ids[2]
    # A checkpoint continues if the ids are the same.
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.slow
def test_workers_encode_with_a_vocabulary_of_a_package(accepted, own_package, text_file):
    Path("my_package.py").write_text(VOCABULARY)
    sys.modules.pop("my_package")
    words = ("prepare", text_file, ALLOW, "--vocab=my_package.Letters")
    for n_worker in (1, 2):
        accepted(*words, f"--out=store{n_worker}", f"--workers={n_worker}")
    files = [path for path in Path("store1").rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        assert (Path("store2") / path.relative_to("store1")).read_bytes() == path.read_bytes()


MAPPED = """
from dataclasses import dataclass, field

from my_package import MyConfig


@dataclass(frozen=True)
class MappedConfig(MyConfig):
    shares: dict[str, float] = field(default_factory=dict)
"""


@pytest.mark.parametrize("shares", [{"a": 1.5, "b": 2.0}, {}])
def test_a_run_continues_with_a_setting_that_is_a_mapping(
    own_package, accepted, settings, tmp_path, shares
):
    (tmp_path / "mapped.py").write_text(MAPPED)
    allow = "--allow_imports=mapped"
    where = f"--trainer.default_root_dir={tmp_path / 'r'}"
    named = ["--model.net=mapped.MappedConfig", f"--model.net.shares={json.dumps(shares)}"]
    accepted("fit", allow, *named, *settings, where)
    accepted("fit", allow, *settings, where, "--resume=auto", "--trainer.max_steps=6")
    net = load_checkpoint(tmp_path / "r" / "version_0").settings["net"]
    assert net["shares"] == shares
    accepted("test", tmp_path / "r" / "version_0", allow)


@pytest.mark.parametrize("kind", ["positions", "vocabulary"])
def test_positions_and_vocabularies_of_a_notebook_are_warned_of_before_training(
    fit, make_model, make_data, monkeypatch, own_package, kind
):
    imports.allow_imports(["__main__"])
    code, name = {"positions": (SCHEME, "Slopes"), "vocabulary": (VOCABULARY, "Letters")}[kind]
    names = {"__name__": "__main__"}
    exec(code, names)
    monkeypatch.setattr(sys.modules["__main__"], name, names[name], raising=False)
    vocab = "__main__.Letters" if kind == "vocabulary" else "characters"
    data = make_data(vocab=vocab)
    scheme = {"positions": "__main__.Slopes"} if kind == "positions" else {}
    expected = f"^{kind}: no command can load checkpoints with __main__.{name};"
    with pytest.warns(UserWarning, match=expected):
        fit(model=make_model(n_token=data.n_token, **scheme), data=data, max_steps=1)
