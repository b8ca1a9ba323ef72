"""Stores in an S3 server, which is slow and loses answers."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import s3fs

from tests.data.s3_server import Faults, serve_s3, upload_folder
from txl_lightning.data import remote
from txl_lightning.data.store import Store, open_store
from txl_lightning.errors import DataError

pytestmark = [
    pytest.mark.slow,
    # botocore and s3fs leave their connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def s3(faults, monkeypatch):
    """Upload a folder; return its URL. Clients meet the faults."""
    with serve_s3(faults) as names:
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(remote, "FIRST_PAUSE", 0.01)
        # It would connect to the server of an earlier test.
        s3fs.S3FileSystem.clear_instance_cache()
        yield lambda folder: upload_folder(folder, names)


@pytest.fixture
def store(tmp_path, write_files, txl) -> Store:
    """A store of 12 MB."""
    text = np.random.default_rng(0).integers(97, 123, 12_000_000).astype(np.uint8)
    text[::1000] = ord("\n")
    path = write_files({"large.txt": text.tobytes()}) / "large.txt"
    assert txl("prepare", path, "--document_unit=lines", "--out=large")[0] == 0
    return open_store("large", tmp_path / "data")


def test_lost_slow_and_truncated_answers_do_not_change_a_file(
    s3, store, faults, monkeypatch, tmp_path
):
    url = s3(store.folder)
    faults.latency, faults.share = 0.02, 0.5
    # So many that it cannot fail by chance.
    monkeypatch.setattr(remote, "ATTEMPTS", 30)
    for n in range(5):
        there = open_store(url, tmp_path / f"there {n}")
        for split in ("train", "val", "test"):
            one, two = there.text(split), store.text(split)
            np.testing.assert_array_equal(one.ids, two.ids)
            np.testing.assert_array_equal(one.starts, two.starts)
    assert min(faults.counts[kind] for kind in ("cut", "truncated", "error")) > 0


def test_what_cannot_be_read_is_one_line_that_says_what_to_set(
    s3, store, faults, monkeypatch, tmp_path
):
    url = s3(store.folder)

    def refusal(url: str) -> str:
        with pytest.raises(DataError) as error:
            assert open_store(url, tmp_path / "there").manifest
        assert "\n" not in str(error.value)
        return str(error.value)

    expected = "cannot be read: expected a store written by prepare --out, with manifest.json"
    for wrong in (f"{url}/other", "s3://none/store"):
        assert refusal(wrong) == f"data.store: {wrong}/manifest.json: {expected}"
    faults.share, faults.kinds = 1.0, ("denied",)
    assert "its credentials may not read it" in refusal(url)
    faults.share = 0.0
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    s3fs.S3FileSystem.clear_instance_cache()
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in refusal(url)


def test_two_processes_on_a_store_in_the_server_train_as_on_a_disk(
    s3, txl, accepted, sizes, text_file, faults, processes
):
    accepted("prepare", text_file, "--out=small")
    url = s3(Path("small"))
    faults.latency, faults.share = 0.02, 0.2
    command = [sys.executable, "-m", "txl_lightning", "fit", *sizes, f"--data.store={url}"]
    command += ["--trainer.devices=2", "--trainer.strategy=ddp"]
    done = processes.run([*command, "--trainer.default_root_dir=there"], env=os.environ)
    assert done.returncode == 0, done.stderr
    here = [each if "store" not in each else "--data.store=small" for each in command]
    done = processes.run([*here, "--trainer.default_root_dir=here"], env=os.environ)
    assert done.returncode == 0, done.stderr
    one, two = (Path(root, "version_0/metrics.csv").read_text() for root in ("there", "here"))
    losses = [[line.split(",")[:2] for line in text.splitlines()] for text in (one, two)]
    assert losses[0] == losses[1]
