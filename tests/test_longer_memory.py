"""Networks that read with more memory than in training: how they are trained, read and compared."""

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from experiments.copying.rows import Sizes
from experiments.longer_memory import figures, run
from experiments.longer_memory.kinds import AFTER, BEFORE, FARTHEST, KINDS, LENGTHS, SEGMENT
from txl_lightning import CorpusDataModule, LanguageModel, TransformerXLConfig

PIECES = Sizes(memory_lens=(AFTER,))
N_STEP = 6


@pytest.fixture(scope="module")
def net():
    """Return a small network whose attention depends on distance."""
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "d_model": 16, "n_token": 256}
    return TransformerXLConfig(**sizes, mem_len=SEGMENT, init_std=0.5).build().eval()


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(256, size=40_000)


class ReadStates(Callback):
    """Notes how many states each update may read."""

    def __init__(self):
        self.counts = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        memory = module.memory_bank.committed.get(("train", 0))
        self.counts.append(memory.filled_B.tolist() if memory else [0, 0])


def count_states(tmp_path, *callbacks):
    """Return the states that each of N_STEP updates may read, by row, of a memory of 8."""
    text = "all work and no play makes jack a dull boy. " * 20
    (tmp_path / "text.txt").write_text(text)
    data = CorpusDataModule(path=str(tmp_path / "text.txt"), tgt_len=8, batch_size=2)
    module = LanguageModel(TransformerXLConfig(n_layer=1, d_model=16, n_head=2, mem_len=8))
    noted = ReadStates()
    off = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    trainer = Trainer(
        max_steps=N_STEP,
        accelerator="cpu",
        callbacks=[*callbacks, noted],
        limit_val_batches=0,
        **dict.fromkeys(off, False),
    )
    trainer.fit(module, data)
    return noted.counts


def test_an_update_reads_a_drawn_number_of_states_and_all_are_there_for_the_next(tmp_path):
    drawn = [run.draw_length(8, step) for step in range(N_STEP)]
    assert len(set(drawn)) > 2
    assert count_states(tmp_path) == [[0, 0]] + [[8, 8]] * (N_STEP - 1)
    counts = count_states(tmp_path, run.RandomMemory())
    assert counts == [[0, 0]] + [[n, n] for n in drawn[1:]]


def test_draws_reach_from_no_state_to_all_and_are_those_of_the_step():
    drawn = [run.draw_length(8, step) for step in range(200)]
    assert set(drawn) == set(range(9))
    assert drawn == [run.draw_length(8, step) for step in range(200)]


def test_all_ways_are_trained_with_equal_lengths_and_only_one_draws_them(monkeypatch, tmp_path):
    trained = {}
    monkeypatch.setattr(
        run.common, "train", lambda args, name, seed, how: trained.update({name: how})
    )
    for kind in KINDS:
        run.train(None, kind, 5, Sizes())
    assert {how["model.net.mem_len"] for how in trained.values()} == {SEGMENT}
    assert {how["data.tgt_len"] for how in trained.values()} == {SEGMENT}
    assert {how["trainer.max_steps"] for how in trained.values()} == {11_200}
    drawing = [name for name, how in trained.items() if run.DRAW in how["trainer.callbacks"]]
    assert drawing == ["random memory 5"]


def test_clamped_distances_change_only_what_lies_beyond_training(net, ids):
    pieces_PT = ids[: 4 * (AFTER + 96)].reshape(4, -1)
    plain = run.score_lengths(net, pieces_PT, PIECES, None)
    clamped = run.score_lengths(net, pieces_PT, PIECES, FARTHEST)
    for length in (SEGMENT, BEFORE):
        assert clamped[str(length)] == pytest.approx(plain[str(length)], rel=1e-6)
    assert clamped[str(AFTER)] != pytest.approx(plain[str(AFTER)], rel=1e-4)


def test_attention_that_is_equal_everywhere_is_measured_as_such(net, ids):
    uniform = net.config.build().eval()
    for parameter in uniform.parameters():
        torch.nn.init.zeros_(parameter)
    found = run.measure_attention(uniform, ids)
    # Of AFTER states, those at distances 0 to FARTHEST are not beyond.
    assert found["beyond"] == pytest.approx(1 - BEFORE / AFTER)
    # The n-th token of a segment sees the memory and n + 1 tokens: distances 0 to SEGMENT + n.
    seen = [(SEGMENT + n) / 2 for n in range(SEGMENT)]
    assert found["distance"] == pytest.approx(np.mean(seen))


def make_records(**perplexities):
    """Return records of the paper's positions, by name: perplexities of BEFORE and AFTER."""
    records = {}
    for seed, (name, (before, after)) in enumerate(perplexities.items()):
        by_length = {str(n): 10.0 for n in LENGTHS} | {str(BEFORE): before, str(AFTER): after}
        curve = {"steps": [9, 19], "val/saved_on_copy": [0.1, 0.4 if name == "late" else 0.2]}
        records[name] = {
            "kind": "sinusoidal", "seed": seed, "curve": curve,
            "perplexity": {"as is": by_length, "clamped": by_length | {str(AFTER): before}},
            "attention": {"beyond": after / before, "distance": -after},
        }  # fmt: skip
    return records


def test_a_network_breaks_if_it_grows_by_more_than_5_percent_from_a_third_of_the_memory():
    records = make_records(kept=(10.0, 10.4), late=(20.0, 21.1), broken=(10.0, 15.0))
    [_, plain, clamped] = figures.list_growths(records)
    assert plain == ["the paper's positions", "2 of 3", "1.04, 1.06, 1.50"]
    assert clamped == ["the paper's positions, clamped", "0 of 3", "1.00, 1.00, 1.00"]
    [found, *_] = figures.list_contrasts(records)
    assert found.effects == pytest.approx([100 - 1000 / 10.4, 100 - 2000 / 21.1, 100 - 1000 / 15])


def test_a_training_that_was_repeated_stands_beside_the_one_before_and_in_no_share():
    before = {"kind": "sinusoidal", "seed": 31}
    before["perplexity"] = {"as is": {str(length): 10.0 for length in LENGTHS}}
    longer = {str(length): 10.0 for length in LENGTHS} | {str(AFTER): 20.0}
    again = {"kind": "sinusoidal, again", "seed": 31, "perplexity": {"as is": longer}}
    records = {"sinusoidal 31": before, "sinusoidal 31, again": again}
    _, *rows = figures.list_repeats(records)
    assert [row[-1] for row in rows] == ["+0.0000", "+10.0000"]
    assert figures.list_growths(records)[1][1] == "0 of 1"


def test_predictors_are_compared_by_rank_over_the_seeds_that_have_them():
    records = make_records(kept=(10.0, 10.4), late=(20.0, 21.1), broken=(10.0, 15.0))
    records |= make_records(a=(1, 1), b=(1, 1), c=(1, 1), later=(10.0, 12.0), latest=(10.0, 13.0))
    for name in "abc":
        del records[name]
    for name, step in {"later": 9, "latest": 29}.items():
        records[name]["curve"] = {"steps": [step], "val/saved_on_copy": [0.4]}
    [_, beyond, distance, step] = figures.list_predictors(records)
    assert beyond[1] == "+1.00"
    # By growth, the ranks of distance are 5, 1, 4, 3, 2.
    assert distance[1] == "-0.40"
    # By growth, those of updates are 2, 1, 3.
    assert step[1:] == ["+0.50", "never, 20, never, 10, 30"]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ([1, 2, 3, 4], 1),
        ([4, 3, 2, 1], -1),
        ([1, 3, 2, 4], 0.8),
        ([1, 2, 2, 3], 0.9487),
    ],
)
def test_rank_correlation_is_spearmans(second, expected):
    found = figures.correlate_ranks([10, 20, 30, 40], second)
    assert found == pytest.approx(expected, abs=1e-4)
