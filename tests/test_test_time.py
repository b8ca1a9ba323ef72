"""Work at test time is counted as its formula says, and another text than was chosen is refused.

Compressors read the bytes that networks read, and a part of a text has its own bits per byte.
"""

import tarfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments import compressors
from experiments.results import Scores, load_records
from experiments.test_time import compressed, figures, run, sizes, texts
from experiments.test_time.ways import LEARNING, SEGMENT, WAYS, count_operations
from txl_lightning import TransformerXLConfig, stream_nats
from txl_lightning.data.sources import DataConfig
from txl_lightning.errors import DataError

FOLDER = Path(figures.__file__).parent
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


BEST_RATES = {32: 0.2, 16: 0.05, 8: 0.025}


def choose_from(nats_of_length):
    """Return what is chosen where each length has a best rate, and a decay of 0.001 is best."""
    tried = []

    def nats_of(tgt_len, rate, decay=0.0):
        tried.append(tgt_len)
        off = abs(np.log2(rate / BEST_RATES[tgt_len])) + abs(decay - 0.001)
        return nats_of_length[tgt_len] + 0.01 * off

    way = WAYS["steps in shorter segments"]
    return run.choose_length(nats_of, way, fast=False), {*tried}


@pytest.mark.parametrize(
    ("nats", "expected", "tried"),
    [
        ({32: 3.0, 16: 2.9, 8: 2.8}, 8, {32, 16, 8}),
        ({32: 3.0, 16: 2.9, 8: 2.95}, 16, {32, 16, 8}),
        ({32: 3.0, 16: 3.1, 8: 2.8}, 32, {32, 16}),
    ],
)
def test_segments_are_halved_until_nats_rise_each_with_its_own_rate(nats, expected, tried):
    best = {"tgt_len": expected, "rate": BEST_RATES[expected], "decay": 0.001}
    assert choose_from(nats) == (best, tried)


def test_work_of_shorter_segments_has_the_keys_of_the_memory_in_each_of_them(net):
    # Keys and values of 128 states come for 64 tokens, or for 16.
    of_states = [4 * 2 * D**2 * 128 / length for length in (64, 16)]
    longer, shorter = (count(net, tgt_len=length, rate=0.1) for length in (64, 16))
    assert shorter - longer >= of_states[1] - of_states[0]


def test_another_text_than_was_chosen_is_refused(tmp_path):
    part = texts.Part("a/", ".py", "0" * 64)
    (tmp_path / "b.py").write_text("x = 1\n")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "b.py", "a/b.py")
    with pytest.raises(DataError, match=r"a\.tar\.gz: not the text that was chosen"):
        texts.extract_text(tmp_path / "a.tar.gz", part, tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()


MEASURED = [text for text in figures.TEXTS if text != figures.BEFORE_INDEX]


def make_records():
    """Return records of all ways, of which each needs 0.1 bits less than the one before it.

    Four of eight blocks are before the index, and have as many bytes as the others.
    """
    block_bytes = dict.fromkeys(MEASURED, [10] * 8)
    records = {"sizes": {"block_bytes": block_bytes, "blocks_before_index": 4}}
    for place, (name, way) in enumerate(WAYS.items()):
        bits = 3 - 0.1 * place
        chosen = {"kind": "chosen", "way": name, "options": dict(way.options), "val": bits}
        records[f"chosen {name}"] = chosen | {"operations": 100.0 * (1 + place)}
        for seed in (1, 2, 3):
            fields = {
                "kind": name,
                "seed": seed,
                "bits_per_byte": dict.fromkeys(MEASURED, bits),
            }
            blocks = dict.fromkeys(MEASURED, [bits] * 8)
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
    measured, _, repeats, chosen = figures.list_tables(make_records())
    assert len(repeats) == 1
    assert [row[1] for row in measured[1:]] == [f"{1 + n:.1f}" for n in range(len(WAYS))]
    assert measured[2][2:] == ["2.900 ± 0.000 (3)"] * 4
    options = {name: shown for name, shown, _ in chosen[1:]}
    assert options["static"] == "none"
    assert options["steps of norms"] == "`rate_weights *norm*`"
    figures.draw(make_records(), tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {*figures.TEXTS}


def test_a_training_that_was_repeated_is_beside_the_first_one_and_in_no_contrast():
    records = make_records()
    before = figures.list_contrasts(records)
    bits = dict.fromkeys(MEASURED, 2.75) | {"django_docs": 3.25}
    blocks = {"django_docs": [3.0] * 4 + [3.5] * 4}
    again = {"kind": "static, again", "seed": 2, "bits_per_byte": bits, "blocks": blocks}
    records["static 2, again"] = records["static 2"] | again
    _, _, repeats, _ = figures.list_tables(records)
    assert repeats[1:] == [
        ["Django's code: static", "2", "3.0000", "2.7500", "-0.2500"],
        ["Django's documentation: static", "2", "3.0000", "3.2500", "+0.2500"],
        ["Django's documentation without its index: static", "2", "3.0000", "3.0000", "+0.0000"],
        ["Python source: static", "2", "3.0000", "2.7500", "-0.2500"],
    ]
    assert [each.effects for each in figures.list_contrasts(records)] == [
        each.effects for each in before
    ]


def test_a_picture_has_every_way_also_where_steps_by_the_rms_have_the_work_of_plain_ones():
    records = make_records()
    for name in [name for name in records if name.startswith("chosen ") and "RMS " in name]:
        records[name]["operations"] = records[name.replace("RMS ", "")]["operations"]
    drawn = []
    axes = Namespace(
        errorbar=lambda works, means, **style: drawn.extend(means),
        annotate=lambda label, place, **style: None,
    )
    figures.plot_ways(axes, figures.collect_points(records, "django_code"))
    bits = [records[f"{name} 1"]["bits_per_byte"]["django_code"] for name in WAYS]
    assert sorted(drawn) == pytest.approx(sorted(bits))


def test_points_of_ways_are_joined_by_no_line_and_a_compressor_is_a_gray_one():
    records = make_records()
    records["ppmd alone"] = make_compressed("alone", python_source=1.5)
    drawn = []
    axes = Namespace(
        errorbar=lambda *places, **style: drawn.append(style["linestyle"]),
        axhline=lambda value, **style: drawn.append((value, style["color"], style["label"])),
        annotate=lambda label, place, **style: drawn.append(label),
    )
    figures.plot_ways(axes, figures.collect_points(records, "python_source"))
    figures.plot_compressors(axes, figures.list_compressed(records), "python_source")
    assert drawn.count("none") == len(figures.FAMILIES)
    assert drawn[-1] == (1.5, "gray", "PPMd alone")
    assert {"2,000", "all weights", "last layer", "norms", "256", "shorter segments"} <= set(drawn)


def make_compressed(when, **bits):
    fields = {"kind": "compressor", "compressor": "ppmd", "when": when, "options": {"order": 6}}
    return fields | {"bits_per_byte": bits}


def test_compressors_are_rows_after_all_ways_with_the_order_that_was_chosen():
    records = make_records()
    records["ppmd after"] = make_compressed("after", django_code=1.25, python_source=1.5)
    records["ppmd alone"] = make_compressed("alone", django_code=1.75)
    zpaq = make_compressed("alone", django_docs=1.5) | {"compressor": "zpaq", "options": {}}
    records["zpaq alone"] = zpaq
    measured, _, _, chosen = figures.list_tables(records)
    rows = [
        ["PPMd alone", "", "1.750", "", "", ""],
        ["zpaq -m5 alone", "", "", "1.500", "", ""],
        ["PPMd after the training text", "", "1.250", "", "", "1.500"],
    ]
    assert measured[-3:] == rows
    assert figures.list_front(records)[-3:] == rows
    assert chosen[-1] == ["PPMd after the training text", "`order 6`", ""]


def test_a_part_of_a_text_has_the_bits_of_its_tokens_over_its_own_bytes():
    nats_N = np.random.default_rng(0).exponential(size=600)
    size_N = np.random.default_rng(1).integers(1, 9, 600)
    bits = nats_N.sum() / np.log(2) / size_N.sum()
    # As run.score_blocks of stop_gradient keeps them.
    blocks = [part.mean() for part in np.array_split(nats_N * (bits / nats_N.mean()), 6)]
    n_byte = [int(part.sum()) for part in np.array_split(size_N, 6)]
    scores = Scores({7: bits}, {7: blocks})
    part = figures.cut_scores(scores, n_byte, slice(1, 3))
    assert part.whole[7] == pytest.approx(nats_N[100:300].sum() / np.log(2) / size_N[100:300].sum())
    assert np.mean(part.blocks[7]) == pytest.approx(part.whole[7])
    assert figures.cut_scores(scores, n_byte, slice(None)).whole[7] == pytest.approx(bits)
    assert figures.cut_scores(scores, n_byte, slice(0)) == Scores({}, {})


def test_the_table_by_quarter_has_the_effect_of_each_part_of_each_text():
    records = make_records()
    for seed in (1, 2, 3):
        cache = records[f"cache of 20,000 {seed}"]["blocks"]
        steps = records[f"steps of all weights {seed}"]["blocks"]
        cache["django_docs"] = [1.0] * 6 + [1.5 if seed == 1 else 1.0] * 2
        steps["django_docs"] = [1.5, 1.5, 1.5, 1.0, 1.0, 1.0, 1.25, 1.25]
    quarters = {row[0]: row[1:] for row in figures.list_quarters(records)}
    name = "cache of 20,000 against steps of all weights"
    assert quarters[f"Django's documentation: {name}"] == [
        "+0.500, 3 of 3",
        "+0.250, 3 of 3",
        "+0.000, 0 of 3",
        "+0.083, 2 of 3",
    ]
    assert len(quarters) == 1 + len(figures.QUARTERED) * len(figures.TEXTS)
    few = {key: each for key, each in records.items() if not key.startswith("steps ")}
    assert len(figures.list_quarters(few)) == 1


def find_interval_of_longer_blocks(records, name, n_block=10):
    """Return the 95 % interval of a contrast, with several blocks drawn as one."""
    [contrast] = [each for each in figures.list_contrasts(records) if each.name == name]
    longer = [np.reshape(blocks, (-1, n_block)).mean(axis=1) for blocks in contrast.documents]
    return replace(contrast, documents=longer).interval


def test_with_blocks_ten_times_as_long_intervals_of_code_alone_are_without_0_as_the_page_says():
    page = " ".join((FOLDER / "README.md").read_text().split())
    assert "the 0.050 on documentation has an interval with 0" in page
    assert "all three primary contrasts keep theirs without 0" in page
    records = load_records(FOLDER / "results.json")
    cache = "cache of 20,000 against steps of all weights"
    low, high = find_interval_of_longer_blocks(records, f"Django's documentation: {cache}")
    assert low < 0 < high
    assert (low + high) / 2 == pytest.approx(0.05, abs=0.01)
    shorter = "cache of 20,000 against steps in segments of 4"
    for name in (cache, "RMS steps against plain steps", shorter):
        low, high = find_interval_of_longer_blocks(records, f"Django's code: {name}")
        assert low * high > 0, name


@pytest.fixture
def store(monkeypatch, tmp_path):
    """Return a store of bytes, and make it that of the networks."""
    text = "".join(f"line {n}: as many words as there are, {n % 7}\n" for n in range(600))
    (tmp_path / "text.txt").write_text(text)
    monkeypatch.setenv("TXL_DATA", str(tmp_path))
    store = DataConfig(path=str(tmp_path / "text.txt"), vocab="bytes").open_text()
    for module in (sizes, compressed):
        monkeypatch.setattr(module, "open_store", lambda args: store)
    index = b"\n".join((b"=" * len(texts.INDEX), texts.INDEX, b"=" * len(texts.INDEX)))
    (tmp_path / "django_docs.txt").write_bytes(
        b"1 \xe2\x82\xac a word, " * 50 + index + b"\nx" * 500
    )
    return store


@pytest.mark.parametrize("rows", [1, 3])
def test_blocks_have_the_tokens_that_a_text_in_rows_is_scored_by(net, rows):
    ids = np.random.default_rng(0).integers(256, size=1001)
    blocks = sizes.list_blocks(len(ids), rows)
    places = np.concatenate(blocks)
    row_len = -(-len(ids) // rows)
    firsts = {row_len * row for row in range(rows)}
    assert [*places] == [place for place in range(len(ids)) if place not in firsts]
    assert {len(block) for block in blocks} <= {9, 10}
    nats = stream_nats(net, ids[: 333 * rows], batch_size=rows, tgt_len=64)
    assert nats.numel() == len(np.concatenate(sizes.list_blocks(333 * rows, rows)))


def test_only_blocks_that_end_before_the_index_are_counted(store):
    n_token = 1000
    found = sizes.measure(Namespace(fast=False), ["python_source", "django_docs"], n_token)
    assert found["bytes"] == {"python_source": n_token + 1, "django_docs": n_token + 1}
    assert found["block_bytes"]["django_docs"] == [10] * sizes.N_BLOCK
    start = texts.find_index((texts.find_text("django_docs")).read_bytes())
    assert start == 50 * 14
    # The first token is scored in no block: the 70th ends with the first byte of the index.
    assert found["blocks_before_index"] == 69


def test_ppmd_reads_the_bytes_of_the_tokens_in_the_order_that_is_best_on_validation_text(store):
    pytest.importorskip("pyppmd")
    read = ["python_source", "django_docs"]
    args = Namespace(fast=False)
    alone, after = (
        compressed.measure(args, "ppmd", when, read, 900) for when in ("alone", "after")
    )
    n_byte = {"python_source": 901, "django_docs": 901, figures.BEFORE_INDEX: 700}
    for found in (alone, after):
        assert found["bytes"] == n_byte
        best = min(found["tried"], key=found["tried"].get)
        assert found["options"] == {"order": int(best)}
    assert (alone["bytes_before"], after["bytes_before"]) == (0, len(store.ids("train")))
    text, val = (store.ids(split)[:901].tobytes() for split in ("test", "val"))
    before = store.ids("train").tobytes()
    for found, earlier in ((alone, b""), (after, before)):
        how = {"before": earlier, "order": found["options"]["order"]}
        bits = compressors.count_bits("ppmd", text, **how)
        assert found["bits_per_byte"]["python_source"] == pytest.approx(bits)
        tried = found["tried"][f"{how['order']}"]
        assert tried == pytest.approx(compressors.count_bits("ppmd", val, **how))
    assert after["bits_per_byte"]["python_source"] < alone["bits_per_byte"]["python_source"]
