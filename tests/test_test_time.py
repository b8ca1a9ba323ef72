"""Work at test time is counted as its formula says, and another text than was chosen is refused."""

import tarfile

import numpy as np
import pytest

from experiments.test_time import figures, texts
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


def make_records():
    """Return records of all ways, of which each needs 0.1 bits less than the one before it."""
    records = {}
    for place, (name, way) in enumerate(WAYS.items()):
        bits = 3 - 0.1 * place
        chosen = {"kind": "chosen", "way": name, "options": dict(way.options), "val": bits}
        records[f"chosen {name}"] = chosen | {"operations": 100.0 * (1 + place)}
        for seed in (1, 2, 3):
            fields = {
                "kind": name,
                "seed": seed,
                "bits_per_byte": dict.fromkeys(figures.TEXTS, bits),
            }
            blocks = dict.fromkeys(figures.TEXTS, [bits] * 4)
            records[f"{name} {seed}"] = fields | {"blocks": blocks}
    return records


def test_what_each_hypothesis_compares_is_a_contrast_of_each_text_with_the_expected_side_first():
    found = {each.name: each for each in figures.list_contrasts(make_records())}
    assert len(found) == len(figures.TEXTS) * len(figures.CONTRASTS)
    for name, (first, second) in figures.CONTRASTS.items():
        places = [[*WAYS].index(each) for each in (first, second)]
        for title in figures.TEXTS.values():
            effects = found[f"{title}: {name}"].effects
            assert effects == pytest.approx([0.1 * (places[0] - places[1])] * 3)


def test_the_tables_have_the_work_of_each_way_beside_static_and_its_patterns_as_code(tmp_path):
    measured, repeats, chosen = figures.list_tables(make_records())
    assert len(repeats) == 1
    assert [row[1] for row in measured[1:]] == [f"{1 + n:.1f}" for n in range(len(WAYS))]
    assert measured[2][2:] == ["2.900 ± 0.000 (3)"] * 3
    options = {name: shown for name, shown, _ in chosen[1:]}
    assert options["static"] == "none"
    assert options["steps of norms"] == "`rate_weights *norm*`"
    figures.draw(make_records(), tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {*figures.TEXTS}


def test_a_training_that_was_repeated_is_beside_the_first_one_and_in_no_contrast():
    records = make_records()
    before = figures.list_contrasts(records)
    bits = dict.fromkeys(figures.TEXTS, 2.75) | {"django_docs": 3.25}
    again = {"kind": "static, again", "seed": 2, "bits_per_byte": bits}
    records["static 2, again"] = records["static 2"] | again
    _, repeats, _ = figures.list_tables(records)
    assert repeats[1:] == [
        ["Django's code: static", "2", "3.0000", "2.7500", "-0.2500"],
        ["Django's documentation: static", "2", "3.0000", "3.2500", "+0.2500"],
        ["Python source: static", "2", "3.0000", "2.7500", "-0.2500"],
    ]
    assert [each.effects for each in figures.list_contrasts(records)] == [
        each.effects for each in before
    ]


def test_a_picture_has_every_way_also_where_steps_by_the_rms_have_the_work_of_plain_ones():
    records = make_records()
    for name in [name for name in records if name.startswith("chosen ") and "RMS " in name]:
        records[name]["operations"] = records[name.replace("RMS ", "")]["operations"]
    lines = figures.collect_lines(records, "django_code")
    drawn = [found[1] for line in lines.values() for found in line.values()]
    assert sorted(drawn) == sorted(
        records[f"{name} 1"]["bits_per_byte"]["django_code"] for name in WAYS
    )
