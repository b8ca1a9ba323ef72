"""What works for a Transformer-XL works for each network, or is refused in one line."""

import copy
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml

import txl_lightning
from tests.evaluation.test_adaptation import CACHE, score_slowly
from tests.helpers.state_networks import SIZES, SMALL_NETWORKS
from tests.helpers.wandb_files import Run
from txl_lightning import Adaptation, stream_nats
from txl_lightning.data.vocab import Bytes

pytestmark = pytest.mark.slow
NETS = {name: {"class_path": name} | SIZES | SMALL_NETWORKS[name] for name in SMALL_NETWORKS}
COMMON = ["--data.vocab=bytes", "--data.tgt_len=8", "--data.batch_size=4", "--trainer.max_steps=4"]
COMMON += ["--trainer.val_check_interval=2", "--trainer.limit_val_batches=8", "--plan.minutes=null"]
COMMON += ["--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1", "--report.sample_len=20"]
# Larger steps make a Gated DeltaNet of this size chaotic.
DYNAMIC = Adaptation(rate=0.03, decay=0.02).fill()
BOTH = Adaptation(cache_len=30, cache_weight=0.6, rate=0.03).fill()
IDS = torch.randint(11, (40,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=NETS)
def settings(request):
    """The settings of a network."""
    return NETS[request.param]


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory, write_letters) -> Path:
    """The folder of a run; not to be modified."""
    from txl_lightning import __main__ as entry

    folder = tmp_path_factory.mktemp("run")
    where = [f"--data.path={write_letters(folder)}", f"--data.data_dir={folder / 'data'}"]
    where += [f"--trainer.default_root_dir={folder}"]
    entry.run(["fit", *COMMON, *where, f"--model.net={json.dumps(settings)}"])
    return folder / "version_0"


@pytest.fixture
def net(run):
    """The trained network, in float64."""
    return txl_lightning.load(run)[0].double().eval()


def adapt_slowly(net, ids, tgt_len, use):
    """Return the nats of a text, with the steps of Krause et al. after each segment."""
    trained = net
    net = copy.deepcopy(net)
    memory = None
    nats = []
    for start, stop in pairwise([*range(0, len(ids) - 1, tgt_len), len(ids) - 1]):
        text = ids[None, start : stop + 1]
        nats_BL, memory = net.loss(text[:, :-1], text[:, 1:], memory)
        nats.append(nats_BL[0].detach())
        net.zero_grad()
        nats_BL.mean().backward()
        with torch.no_grad():
            for weight, first in zip(net.parameters(), trained.parameters(), strict=True):
                weight += use.decay * (first - weight) - use.rate * weight.grad
    return torch.cat(nats)


@pytest.mark.parametrize("tgt_len", [1, 5, 8])
def test_dynamic_evaluation_takes_the_steps_of_the_paper(net, tgt_len):
    actual = stream_nats(net, IDS, batch_size=1, tgt_len=tgt_len, adaptation=DYNAMIC)[0]
    torch.testing.assert_close(actual, adapt_slowly(net, IDS, tgt_len, DYNAMIC))
    plain = stream_nats(net, IDS, batch_size=1, tgt_len=tgt_len)[0]
    assert not torch.allclose(actual, plain)


@pytest.mark.parametrize("use", [CACHE, BOTH], ids=["cache", "both"])
def test_a_cache_gives_the_probabilities_of_the_paper(net, use):
    actual = stream_nats(net, IDS, batch_size=1, tgt_len=5, adaptation=use)[0]
    torch.testing.assert_close(actual, score_slowly(net, IDS, 5, use, 1), rtol=1e-6, atol=1e-6)


def test_evaluate_adapts_by_its_options(run, settings, accepted):
    options = {"cache_len": 9, "rate": 0.01, "decay": 0.1}
    words = [f"--{name}={value}" for name, value in options.items()]
    adapted, plain = (json.loads(accepted("evaluate", run, *more).out) for more in (words, []))
    assert options.items() <= adapted["adaptation"].items()
    assert adapted["nats"] != plain["nats"]


def test_evaluate_chooses_an_adaptation(run, accepted):
    words = ("--split=val", "--tgt_len=20", "--adapt=auto", "--adapt_tokens=60")
    record = json.loads(accepted("evaluate", run, *words).out)
    assert {"cache_len", "rate"} <= record["adapt"]["values"].keys()


def test_candidates_have_the_nats_that_the_network_gives_their_text(run, accepted):
    Path("some.jsonl").write_text(json.dumps({"candidates": ["abc", "x"]}))
    words = ("--candidates=some.jsonl", "--context=hello", "--batch_size=1")
    record = json.loads(accepted("score", run, *words).out)
    net = txl_lightning.load(run)[0]
    for text, nats in zip(("abc\n", "x\n"), record["nats"], strict=True):
        ids = torch.tensor([[*f"hello{text}".encode()]])
        expected = net.loss(ids[:, :-1], ids[:, 1:])[0][0, 4:].sum().item()
        assert nats == pytest.approx(expected, rel=1e-4)


def test_context_length_is_measured_by_a_command(run, accepted):
    sizes = ("--step=4", "--max_context=12", "--positions=20")
    accepted("recl", run, *sizes, "--out=found")
    content = json.loads(Path("found", "recl.json").read_text())
    assert content["contexts"] == [4, 8, 12]
    [nats_C] = content["nats"].values()
    assert len({*nats_C}) == 3


def test_report_has_the_network_its_losses_and_its_samples(run, settings):
    page = (run / "report.html").read_text()
    assert settings["class_path"] in page
    for part in ("Loss by position", "Sample", "Memory gain"):
        assert part.lower() in page.lower(), part


def test_text_is_continued_by_a_command(run, accepted):
    words = ("--prompt=hello", "--max_new_tokens=9", "--temperature=0")
    text = accepted("generate", run, *words).out.removesuffix("\n")
    ids = txl_lightning.generate(txl_lightning.load(run)[0], [*b"hello"], 9, temperature=0)
    assert text == Bytes().decode([*b"hello", *ids])


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--weights=bf16"),
        ("generate", "--weights=bf16", "--prompt=a"),
        ("evaluate", "--clamp_len=4"),
        ("export", "--to=pt2"),
        ("convert", "--out=converted"),
    ],
    ids=" ".join,
)
def test_parts_of_a_transformer_xl_are_refused_by_the_name_of_the_network(run, refused, words):
    code, line = refused(words[0], run, *words[1:])
    net = txl_lightning.load(run)[0]
    names = [type(each).__name__ for each in (net, net.config)]
    assert (code, any(name in line for name in names)) == (2, True), line


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("--model.recompute=true", "model.recompute"),
        ("--model.cuda_graph=true", "model.cuda_graph"),
    ],
)
def test_options_of_a_transformer_xl_are_refused_before_a_step(
    refused, settings, text_file, option, key
):
    net = f"--model.net={json.dumps(settings)}"
    code, line = refused("fit", *COMMON, f"--data.path={text_file}", net, option)
    assert (code, line.startswith(f"{key}: invalid true; expected ")) == (2, True), line


@pytest.fixture
def sweep_with_wandb(accepted, text_file, repository, monkeypatch):
    """Return a function that trains networks by a sweep in out/, and returns their W&B settings."""
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("WANDB_MODE", "offline")

    def sweep(nets):
        fit = ["${env}", "${interpreter}", "-m", "txl_lightning", "fit", *COMMON]
        fit += [f"--data.path={text_file}", "--trainer.logger=WandbLogger", "${args}"]
        search = {"method": "grid", "metric": {"name": "val/bits_per_byte"}, "command": fit}
        search["parameters"] = {"model.net": {"values": [json.dumps(net) for net in nets]}}
        Path("search.yaml").write_text(yaml.safe_dump(search))
        accepted("sweep", "search.yaml", "--out=out", "--jobs=2")
        rows = json.loads(Path("out", "results.json").read_text())["rows"]
        assert [row["state"] for row in rows] == ["complete"] * len(nets)
        found = []
        for row in rows:
            [path] = Path("out", f"{row['trial']:03}").rglob("run-*.wandb")
            logged = Run(path)
            bits = [each.get("val/bits_per_byte", math.inf) for each in logged.rows]
            assert min(bits) == pytest.approx(row["value"])
            found.append(logged.config["model"]["net"])
        return found

    return sweep


def test_a_sweep_trains_each_network_with_wandb_offline(sweep_with_wandb):
    found = sweep_with_wandb([*NETS.values()])
    names = {settings["class_path"].rpartition(".")[2] for settings in found}
    assert names == {f"{name}Config" for name in NETS}
