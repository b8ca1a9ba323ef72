"""Every shipped configuration parses, builds, and has the published number of parameters."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig
from txl_lightning.data.datamodule import StreamConfig
from txl_lightning.data.stream import IGNORED
from txl_lightning.data.tasks import TASKS
from txl_lightning.imports import NETWORKS
from txl_lightning.model.config import make_config

FOLDER = Path(__file__).parents[1] / "configs"
HARDWARE = sorted((FOLDER / "hardware").glob("*.yaml"))
SWEEPS = sorted((FOLDER / "sweeps").glob("*.yaml"))  # sweep files, tested in sweeps/
CONFIGS = sorted(set(FOLDER.rglob("*.yaml")) - set(HARDWARE) - set(SWEEPS))
RECIPES = sorted((FOLDER / "networks").glob("*.yaml"))
ABLATIONS = sorted((FOLDER / "paper" / "ablation").glob("*.yaml"))
FEW_ROWS = ("smoke", "networks/sliding_window")  # 8 and 2; more devices are refused
PUBLISHED = ("paper", "nvidia", "fairseq", "labml")  # folders of runs that others published

PARAMETERS = {
    # By vocabulary size, that of the original code and ours. Counted in the original code, except
    # where the published number is in millions: text8_large, ptb and NVIDIA's large.
    "paper/enwik8_base": {204: 41_055_436, 256: 41_082_112},
    "paper/enwik8_large": {204: 277_231_820, 256: 277_285_120},
    "paper/text8_base": {27: 40_964_635},
    "paper/text8_large": {27: 277_050_395},
    "paper/ptb": {10_000: 24_073_420},
    "paper/wt103_base": {267_735: 151_107_538},
    "paper/wt103_large": {267_735: 285_170_506},
    "paper/lm1b_base": {793_471: 357_812_082},
    "paper/lm1b_large": {793_471: 841_295_982},
    "paper/tf/wt103_base": {267_735: 151_119_838},
    "paper/tf/wt103_large": {267_735: 285_205_322},
    "paper/tf/lm1b_base": {793_471: 357_846_898},
    "paper/tf/lm1b_large": {793_471: 841_354_862},
    "nvidia/wt103_base": {267_735: 191_950_298},
    "nvidia/wt103_large": {267_735: 285_167_482},
    "fairseq/wt103_base": {267_744: 151_123_537},
    "labml/tiny_shakespeare": {65: 4_053_569},
}


def config_id(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def header(path: Path) -> str:
    lines = path.read_text().splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def make_net_config(settings: dict, **changes: int):
    named = {"class_path": NETWORKS[settings["class_path"]]} if "class_path" in settings else {}
    return make_config(settings | named | changes)


def n_parameters(path: Path, n_token: int, **changes: int) -> int:
    """Count the parameters of a configuration on the meta device; tied ones count once."""
    net = yaml.safe_load(path.read_text())["model"]["net"]
    with torch.device("meta"):
        model = make_net_config(net, **changes, n_token=n_token).build()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("path", CONFIGS, ids=config_id)
def test_a_configuration_parses_builds_and_has_the_flags_and_sizes_of_its_header(path, parse_fit):
    written = yaml.safe_load(path.read_text())
    config = parse_fit("--config", path)
    assert CorpusDataModule(**written["data"]).config.tgt_len == written["data"]["tgt_len"]
    flags = re.findall(r"--((?:data|model|trainer)\.[\w.]+) ([^\s;,)]*[^\s;,).])", header(path))
    changed = parse_fit("--config", path, *(f"--{key}={value}" for key, value in flags))
    assert all(changed[key] != config[key] for key, _ in flags)
    if path.relative_to(FOLDER).parts[0] in PUBLISHED:
        assert_published_run_is_documented(path, written)
    else:
        net = make_net_config(written["model"]["net"])
        model = LanguageModel(net, OptimConfig(**vars(config.model.optim)))
        assert model.net.config.n_layer == net.n_layer


def assert_published_run_is_documented(path: Path, written: dict) -> None:
    assert re.search(r"[Mm]easured here", header(path))
    assert not {"accelerator", "devices", "num_nodes", "strategy"} & set(written["trainer"])
    assert written["trainer"]["default_root_dir"].startswith("runs/")
    if path not in ABLATIONS and path.name != "wt103_large_8nodes.yaml":
        assert config_id(path) in PARAMETERS


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_published_network_has_the_parameters_of_its_header(name):
    path = FOLDER / f"{name}.yaml"
    for n_token, count in PARAMETERS[name].items():
        assert n_parameters(path, n_token) == count
        assert f"{count:,} parameters" in header(path)


def test_lm1b_base_has_the_papers_parameters_with_its_authors_sizes():
    path = FOLDER / "paper" / "tf" / "lm1b_base.yaml"
    assert n_parameters(path, 793_471, n_layer=20, d_inner=6144) == 469_059_442


def test_rows_of_an_ablation_differ_in_nothing_else():
    for corpus in ("wt103", "lm1b"):
        runs = [yaml.safe_load(p.read_text()) for p in ABLATIONS if p.name.startswith(corpus)]
        for run in runs:
            for key in ("mem_len", "positions", "clamp_len"):
                run["model"]["net"].pop(key, None)
            for key in ("tgt_len", "ext_len", "eval_ext_len"):
                run["data"].pop(key, None)
            del run["trainer"]["default_root_dir"]
        assert len(runs) >= 3
        assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("path", ABLATIONS, ids=config_id)
def test_an_ablation_is_what_its_name_says_with_about_the_papers_parameters(path):
    parts = path.stem.split("_")
    written = yaml.safe_load(path.read_text())
    net = written["model"]["net"]
    data = written["data"]
    names = {"ours": "sinusoidal", "shaw": "shaw", "vaswani": "absolute_sinusoidal"}
    assert net["positions"] == (names | {"al": "absolute_learned"})[parts[2]]
    assert (net["mem_len"] > 0) == (parts[1] == "recurrence")
    again = data.get("ext_len", 0)
    assert again == (data["tgt_len"] if "half" in parts else 0)
    if "clamp_len" in net:
        assert net["clamp_len"] == net["mem_len"] + again + data["tgt_len"] - 1
    if path.name.startswith("wt103"):
        length = int(parts[-1]) if parts[-1].isdigit() else 128
        assert again + data["tgt_len"] == length
        assert net["mem_len"] in (0, length)
        assert n_parameters(path, 267_735) / 1e6 == pytest.approx(128, rel=0.02)
    else:
        assert round(n_parameters(path, 793_471) / 1e9, 1) == 0.3


def test_the_list_has_every_file_with_the_parameters_of_its_header(txl):
    code, output = txl("configs")
    heading, *rows = (re.split(r"  +", line, maxsplit=1) for line in output.out.splitlines())
    assert (code, heading[0]) == (0, "config")
    assert sorted(name for name, _ in rows) == sorted(map(config_id, FOLDER.rglob("*.yaml")))
    listed = dict(rows)
    assert all(f"{min(c.values()):,}  " in listed[name] for name, c in PARAMETERS.items())
    for path in (FOLDER / "quickstart.yaml", *RECIPES):
        assert f"{n_parameters(path, 4096):,}  " in listed[config_id(path)]
    # The published results of the list are in the headers.
    for name, facts in rows:
        for number in re.findall(r"  perplexity ([\d.]+)|  ([\d.]+) bits", facts):
            assert "".join(number) in header(FOLDER / f"{name}.yaml")


def test_a_given_config_is_printed_and_used_by_name_unless_a_file_has_the_name(txl, parse_fit):
    code, output = txl("configs", "paper/enwik8_base")
    assert (code, output.out) == (0, (FOLDER / "paper" / "enwik8_base.yaml").read_text())
    for name in ("paper/enwik8_base", "paper/enwik8_base.yaml"):
        assert parse_fit("--config", name).model.net.n_layer == 12
    Path("smoke").write_text("model: {net: {n_layer: 7}}")
    assert parse_fit("--config=smoke").model.net.n_layer == 7
    code, output = txl("configs", "paper/enwik9")
    assert (code, "file: invalid paper/enwik9; expected a name" in output.err) == (2, True)


class Device(Trainer):
    """The Trainer of one of several processes, of which the others do not exist."""

    world_size = 1
    global_rank = 0


@pytest.fixture(scope="module")
def devices() -> Device:
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    return Device(accelerator="cpu", **silent)


@pytest.fixture(scope="module")
def letters(tmp_path_factory, write_letters) -> Path:
    return write_letters(tmp_path_factory.mktemp("devices"))


@pytest.mark.parametrize("path", CONFIGS, ids=config_id)
def test_a_configuration_starts_on_devices_that_together_read_all_rows(path, devices, letters):
    settings = yaml.safe_load(path.read_text())["data"]
    if settings.get("corpus") not in TASKS:
        # Short segments, so that a small text is enough.
        names = {field.name for field in fields(StreamConfig)} - {"tgt_len", "ext_len"}
        settings = {name: settings[name] for name in names & settings.keys()}
        settings |= {"path": str(letters), "data_dir": str(letters.parent), "tgt_len": 5}
    data = CorpusDataModule(**settings)
    data.trainer = devices
    for n_device in (2, 4, 8, 16):
        assert_devices_share_rows(devices, n_device, data.val_dataloader)
        assert_devices_share_rows(devices, n_device, data.test_dataloader)
        # Of the check of an installation, and of long rows, there are fewer.
        if n_device <= data.config.batch_size or config_id(path) not in FEW_ROWS:
            assert_devices_share_rows(devices, n_device, data.train_dataloader)


def assert_devices_share_rows(devices: Device, n_device: int, load: Callable[[], Any]) -> None:
    """Assert that devices read the first segment's targets of one process, each once."""
    devices.world_size = 1
    devices.global_rank = 0
    whole = next(iter(load()))
    devices.world_size = n_device
    scored = []
    for devices.global_rank in range(n_device):
        part = next(iter(load()))
        assert part.loss_denominator * n_device == pytest.approx(whole.loss_denominator)
        scored.append(part.targets_BL[part.targets_BL != IGNORED])
    assert torch.equal(torch.cat(scored), whole.targets_BL[whole.targets_BL != IGNORED])


@pytest.mark.parametrize("path", HARDWARE, ids=config_id)
def test_a_hardware_config_changes_only_devices_precision_and_compiling(path, parse_fit):
    smoke = FOLDER / "smoke.yaml"
    written = yaml.safe_load(path.read_text())
    before = parse_fit("--config", smoke).as_dict()
    after = parse_fit("--config", smoke, "--config", path).as_dict()
    assert set(written) <= {"trainer", "resume", "model"}
    assert after["trainer"] == before["trainer"] | written["trainer"]
    assert after["model"] == before["model"] | written.get("model", {})
    assert set(written.get("model", {})) <= {"compile"}
    assert after["data"] == before["data"]
    example = [line for line in path.read_text().splitlines() if line.startswith("#")][-1]
    assert f" --config hardware/{path.stem}" in example
    assert "txl-lightning fit --config " in example


def test_recipes_of_networks_have_about_equal_parameters():
    sizes = {path.stem: n_parameters(path, 4096) for path in RECIPES}
    assert max(sizes.values()) < 1.01 * min(sizes.values())
    nets = [yaml.safe_load(path.read_text())["model"]["net"] for path in RECIPES]
    # Another family of transformers has other settings: they have no recipe.
    assert {net.get("class_path") for net in nets} == {*NETWORKS, None} - {"HuggingFace"}


def test_recipes_of_networks_differ_only_in_network_rates_and_segments():
    """Rows and segments are 16 x 64 tokens; the window's differ by its nature."""
    common = []
    for path in RECIPES:
        run = yaml.safe_load(path.read_text())
        model = run["model"]
        data = run["data"]
        segment = data.pop("tgt_len") * model.pop("gradient_segments", 1)
        rows = data.pop("batch_size")
        assert (rows, segment) == ((2, 512) if path.stem == "sliding_window" else (16, 64))
        for key in ("name", "lr", "muon_lr"):
            model["optim"].pop(key, None)
        del model["net"], run["trainer"]["default_root_dir"]
        common.append(run)
    assert all(run == common[0] for run in common)
