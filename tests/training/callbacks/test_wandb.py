"""W&B has everything that a dashboard shows, read from the files of offline runs."""

import csv
import json
from functools import partial
from pathlib import Path

import pytest
import yaml

KEY = "c0ffee" * 6 + "beef"


@pytest.fixture
def fit(tmp_path, fit_with_wandb):
    return partial(fit_with_wandb, tmp_path)


@pytest.mark.slow
def test_an_offline_run_has_everything_that_a_dashboard_shows(offline_run):
    folder, run = offline_run
    assert run.project == "txl_lightning"
    saved = yaml.safe_load((folder / "runs" / "version_0" / "config.yaml").read_text())
    assert all(run.config[name] == saved[name] for name in ("model", "data"))
    assert set(run.config["txl_lightning"]) == {"commit", "release"}
    assert all(row["tokens"] > 0 for row in run.rows)
    for name in ("train/tokens_seen", "val/tokens_seen"):
        assert all(row["tokens"] == row[name] for row in run.rows if name in row)
    names = {name for row in run.rows for name in row}
    readings = ("loss", "nats", "bits_per_byte", "perplexity")
    assert {f"{stage}/{name}" for stage in ("train", "val") for name in readings} <= names
    others = ("lr", "grad_norm", "memory_bytes", "tokens_per_second")
    assert {f"train/{name}" for name in others} <= names
    assert [row["train/mem_filled"] for row in run.rows if "train/mem_filled" in row][-1] == 8
    assert run.metrics["*"].step_metric == "tokens"
    for name in (f"val/{reading}" for reading in readings):
        least = min(row[name] for row in run.rows if name in row)
        assert run.summary[name]["min"] == pytest.approx(least)
        assert run.metrics[name].step_metric == "tokens"
    # Media are logged after each validation.
    shown = [row for row in run.rows if "val/samples/nrows" in row]
    assert [row["val/samples/nrows"] for row in shown] == list(range(1, len(shown) + 1))
    for name in ("curve", "attention"):
        assert {row[f"{name}/_type"] for row in shown} == {"image-file"}
    [media] = folder.glob("runs/wandb/offline-run-*/files/media")
    tables = sorted(media.rglob("samples_*.table.json"))
    [[_, text], *_] = json.loads(tables[-1].read_text())["data"]
    assert len(text) > 100
    assert text[:8] in "abcdefghijklmnopqrstuvwxyz" * 2
    assert list(media.rglob("nats_by_position*.table.json"))


@pytest.mark.slow
def test_wandb_changes_no_bit_of_training(offline_run, fit, tmp_path):
    fit("--trainer.logger=true", WANDB_MODE="offline")
    assert losses(offline_run[0]) == losses(tmp_path)


def losses(folder: Path) -> list[tuple[str, str]]:
    with (folder / "runs" / "version_0" / "metrics.csv").open(newline="") as file:
        return [(row["train/nats"], row["val/nats"]) for row in csv.DictReader(file)]


def model_artifacts(run) -> list:
    return [artifact for artifact in run.artifacts if artifact.type == "model"]


@pytest.mark.slow
def test_checkpoints_are_artifact_versions_with_aliases_and_digests(offline_run):
    root, run = offline_run
    folder = root / "runs" / "version_0" / "checkpoints"
    for artifact, name in zip(model_artifacts(run), ("best", "last"), strict=True):
        known = json.loads((folder / f"{name}.ckpt.json").read_text())
        digest, about = next(iter(known.items()))
        assert artifact.name == f"checkpoint-{run.id}"
        assert {name, f"step-{about['step']}"} <= set(artifact.aliases)
        assert json.loads(artifact.metadata) == {"sha256": digest, **about}
        files = {entry.path: entry.local_path for entry in artifact.manifest.contents}
        assert files.keys() == {"config.yaml", *(p.name for p in folder.glob(f"{name}.ckpt*"))}
        assert all(Path(path).is_file() for path in files.values())


@pytest.mark.slow
def test_a_resumed_run_keeps_its_id(fit):
    fit("--trainer.max_steps=4", "--wandb.checkpoints=none", WANDB_MODE="offline")
    _, runs = fit("--trainer.max_steps=8", "--resume=auto", WANDB_MODE="offline")
    assert [len(model_artifacts(run)) for run in runs] == [0, 1]
    assert runs[0].id == runs[1].id
    assert runs[1].rows[0]["tokens"] > runs[0].rows[-1]["tokens"]


@pytest.mark.slow
def test_a_run_has_the_settings_of_its_logger(fit):
    settings = {"project": "mine", "id": "abc", "prefix": "p", "save_dir": "runs"}
    options = [f"--trainer.logger.{name}={value}" for name, value in settings.items()]
    tags = '--trainer.logger.dict_kwargs={"tags": ["t"]}'
    _, [run] = fit("--trainer.max_steps=4", *options, tags, WANDB_MODE="offline")
    assert (run.id, run.project, run.tags) == ("abc", "mine", ["t"])
    assert any("p-val/nats" in row for row in run.rows)


@pytest.mark.slow
def test_an_unreachable_server_means_offline_or_exit_code_2_and_no_key_in_a_file(fit, tmp_path):
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY}
    nowhere["WANDB_INIT_TIMEOUT"] = "3"
    done, [run] = fit(**nowhere)
    assert "\nwarning: W&B cannot be reached" in f"\n{done.stderr}"
    assert any("val/nats" in row for row in run.rows)
    assert (tmp_path / "runs" / "version_0" / "metrics.csv").stat().st_size > 0
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path
    assert KEY not in done.stdout + done.stderr
    done, _ = fit("--wandb.required=true", code=2, **nowhere)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: wandb.required: W&B cannot be reached: ")


def test_what_only_wandb_can_do_is_refused_without_its_logger(refused, small):
    code, line = refused("fit", *small, "--wandb.required=true", "--trainer.logger=true")
    expected = "wandb.required: invalid true; expected --trainer.logger WandbLogger"
    assert (code, line) == (2, expected)
