"""Work at test time is counted as its formula says, and another text than was chosen is refused."""

import tarfile

import numpy as np
import pytest

from experiments.test_time import texts
from experiments.test_time.ways import LEARNING, SEGMENT, WAYS, count_operations
from txl_lightning import TransformerXLConfig
from txl_lightning.errors import DataError

D = 32
F = 4 * D


@pytest.fixture
def net():
    sizes = {"n_layer": 4, "n_head": 2, "d_model": D, "d_inner": F, "mem_len": 128, "norm": "pre"}
    return TransformerXLConfig(n_token=256, **sizes).build().eval()


def count(net, **options):
    ids = np.random.default_rng(0).integers(256, size=2000)
    return count_operations(net, ids, options)


def test_static_work_is_that_of_all_products_with_a_full_memory(net):
    scores = 3 * D * (128 + SEGMENT)
    assert count(net) == pytest.approx(4 * (4 * D**2 + 2 * D * F + scores) + D * 256, rel=0.03)


def test_each_way_has_the_work_that_its_parts_add(net):
    static = count(net)
    assert count(net, mem_len=256) - static == pytest.approx(4 * 3 * D * 128, rel=0.05)
    # Scores of 1,000 states, at least.
    assert count(net, cache_len=1000) - static >= 1000 * D
    steps = [count(net, rate=0.1, rate_weights=LEARNING[name]) for name in LEARNING]
    whole, last, norms = steps
    assert static < last < norms < whole


def test_every_way_is_made_of_ways_that_are_chosen_before_it():
    names = [*WAYS]
    for name, way in WAYS.items():
        assert all(names.index(each) < names.index(name) for each in way.of)


def test_another_text_than_was_chosen_is_refused(tmp_path):
    part = texts.Part("a/", ".py", "0" * 64)
    (tmp_path / "b.py").write_text("x = 1\n")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "b.py", "a/b.py")
    with pytest.raises(DataError, match=r"a\.tar\.gz: not the text that was chosen"):
        texts.extract_text(tmp_path / "a.tar.gz", part, tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()
