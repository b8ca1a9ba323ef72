"""Stores in an S3 server, which is slow and loses answers."""

import os
import signal
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import s3fs
import torch

from experiments.preparing.server import Faults, serve_s3, upload_folder
from experiments.preparing.terabyte import DOCUMENT, PART, write_sparse_store
from tests.waiting import wait_until
from txl_lightning.data import remote, units
from txl_lightning.data.documents import whole_file
from txl_lightning.data.preparation import Recipe, prepare_apart
from txl_lightning.data.store import open_store
from txl_lightning.data.store_parts import BLOCK
from txl_lightning.data.stream import FixedLengths, Stream
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
def store(tmp_path, write_files, monkeypatch):
    """A store of 10 parts, 12 MB in all."""
    monkeypatch.setattr(units, "PART", 1_200_000)
    text = np.random.default_rng(0).integers(97, 123, 12_000_000).astype(np.uint8)
    text[::1000] = ord("\n")
    path = write_files({"a.txt": text.tobytes()}) / "a.txt"
    recipe = Recipe({"train": whole_file(path), "val": [], "test": []}, document_unit="lines")
    return prepare_apart(recipe, tmp_path / "store")


def hash_stream(store, every: int = 50) -> list[int]:
    stream = Stream(store.text("train"), 4, FixedLengths(512))
    segments = [stream.segment(index) for index in range(0, len(stream), every)]
    return [hash((s.tokens_BL.numpy().tobytes(), s.doc_pos_BL.numpy().tobytes())) for s in segments]


def test_lost_slow_and_truncated_answers_do_not_change_a_segment(s3, store, faults, monkeypatch):
    url = s3(store.folder)
    faults.latency, faults.share = 0.02, 0.3
    # So many that it cannot fail by chance.
    monkeypatch.setattr(remote, "ATTEMPTS", 20)
    assert hash_stream(open_store(url)) == hash_stream(store)
    assert min(faults.counts[kind] for kind in ("cut", "truncated", "error")) > 0


def test_memory_is_that_of_three_blocks_a_row(s3, store):
    there = open_store(s3(store.folder))
    expected = hash_stream(store)
    hash_stream(there, every=5000)  # imports and the first connection
    tracemalloc.start()
    assert hash_stream(there) == expected
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(there.files.blocks) == 3 * 4
    # 4 rows, the answers that arrive, and the starts of 10 parts.
    assert peak < (3 * 4 + 2 * 4) * BLOCK + 12_000 * 8 + 4_000_000


def test_what_cannot_be_read_is_one_line_that_says_what_to_set(s3, store, faults, monkeypatch):
    url = s3(store.folder)

    def refusal(url: str) -> str:
        with pytest.raises(DataError) as error:
            assert open_store(url).manifest
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


def test_a_run_on_a_store_in_the_server_that_is_killed_goes_on_bit_for_bit(
    s3, txl, sizes, text_file, faults, processes
):
    assert txl("prepare", text_file, "--out=small")[0] == 0
    url = s3(Path("small"))
    steps = [*sizes, "--trainer.max_steps=3000", "--trainer.log_every_n_steps=500"]
    steps += ["--trainer.val_check_interval=100"]
    assert txl("fit", *steps, "--data.store=small", "--trainer.default_root_dir=whole")[0] == 0
    faults.latency, faults.share = 0.02, 0.2
    command = [sys.executable, "-m", "txl_lightning", "fit", *steps, f"--data.store={url}"]
    process = processes.start([*command, "--resume=auto"], env=os.environ)
    last = Path("runs/version_0/checkpoints/last.ckpt")
    wait_until(last.exists, process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = torch.load(last, weights_only=True)["global_step"]
    assert 0 < before < 3000
    done = processes.run([*command, "--resume=auto"], env=os.environ)
    assert done.returncode == 0, done.stderr
    assert not Path("runs/version_1").exists()
    whole = Path("whole/version_0/checkpoints/last.ckpt")
    one, two = (torch.load(path, weights_only=True) for path in (last, whole))
    assert one["global_step"] == two["global_step"] == 3000
    weights = two["state_dict"]
    assert all(torch.equal(weight, weights[name]) for name, weight in one["state_dict"].items())


def test_a_store_of_a_hundred_billion_ids_costs_its_rows(tmp_path):
    n_byte = write_sparse_store(tmp_path, 10**11)
    assert n_byte < 100 * (10**11 // PART + 10)
    there, n_row = open_store(f"file://{tmp_path}"), 32
    tracemalloc.start()
    text = there.text("train")
    opened = tracemalloc.get_traced_memory()[0]
    stream = Stream(text, n_row, FixedLengths(512), rank=1, world_size=8)
    for index in range(len(stream) // 2, len(stream) // 2 + 9):
        segment = stream.segment(index)
    used, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert segment.doc_pos_BL.max() < DOCUMENT
    assert text.open_part.cache_info().currsize <= n_row + 1
    assert len(there.files.blocks) <= 3 * n_row // 8
    # Blocks of 4 own rows, and starts and checksums of the parts of all 32.
    starts = n_row * PART // DOCUMENT * 8
    assert opened < 10_000_000
    assert used < opened + 3 * 4 * BLOCK + 2 * starts
    assert peak < opened + 5 * 4 * BLOCK + 3 * starts
