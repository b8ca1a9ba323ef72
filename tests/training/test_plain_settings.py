"""Settings of numpy's and torch's types give a checkpoint that loads; others are refused."""

import re
from dataclasses import asdict, is_dataclass
from fractions import Fraction
from itertools import count

import numpy as np
import pytest
import torch

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig, load
from txl_lightning.checkpoints import load_checkpoint, save_folder
from txl_lightning.commands.generate import TextOptions
from txl_lightning.data.datamodule import StreamConfig
from txl_lightning.data.tasks import TaskConfig
from txl_lightning.data.vocab import SubwordOptions, WordOptions
from txl_lightning.evaluation.protocols import Protocol
from txl_lightning.generation import Sampling
from txl_lightning.model import EvalLengths
from txl_lightning.training.callbacks.checkpointing import AtomicCheckpointIO
from txl_lightning.training.callbacks.time_budget import TimeBudget
from txl_lightning.training.callbacks.validation_probe import ValidationProbe
from txl_lightning.training.callbacks.weight_averaging import WeightAverage
from txl_lightning.training.options import CheckpointConfig, PlanConfig, ReportConfig, WandbConfig

NET = TransformerXLConfig(
    d_embed=12, cutoffs=(3, 6), div_val=2, tie_projs=(True, False, True), n_layer=1, n_head=2,
    d_model=16, d_head=6, d_inner=9, mem_len=5, clamp_len=7, final_norm=True, loss_chunk_size=50,
)  # fmt: skip
WORDS = {"vocab": "words", "words": WordOptions(1, 20, True, special=("<x>",))}
SUBWORDS = {"vocab": "bpe", "subwords": SubwordOptions(300, 1000), "split": (0.5, 0.2, 0.3)}
RECALL = {"path": None, "corpus": "recall", "task": TaskConfig(3, 5, 2, 40, 30, 7)}


def wrap(value, number):
    """Return settings with each number, also in lists, as another library's."""
    if is_dataclass(value):
        return wrap(asdict(value), number)
    if isinstance(value, dict):
        return {name: wrap(each, number) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [wrap(each, number) for each in value]
    return number(value) if isinstance(value, int | float) else value


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (lambda value: np.array(value)[()], WORDS),
        (np.array, SUBWORDS),
        (lambda value: torch.from_numpy(np.array(value)), RECALL),
    ],
    ids=["numbers of numpy", "arrays", "tensors"],
)
def test_settings_of_any_numeric_type_and_paths_give_a_checkpoint_that_loads(
    make_trainer, text_file, tmp_path, number, text
):
    text_file.write_text("to be or not to be\n" * 400)
    stream = asdict(StreamConfig(tgt_len=8, batch_size=2, ext_len=2, eval_warmup_len=3, seed=5))
    where = {"path": text_file, "data_dir": tmp_path / "data"}
    data = CorpusDataModule(**wrap(stream | where | text, number))
    net = asdict(NET) | {"n_token": data.n_token}
    lengths = {"eval_mem_len": 4, "eval_clamp_len": 6, "compile": False, "recompute": True}
    model = LanguageModel(
        TransformerXLConfig(**wrap(net, number)),
        OptimConfig(**wrap(OptimConfig(muon_lr=0.01, schedule="linear"), number)),
        **wrap(lengths, number),
    )
    # A clock by which a step takes a minute: the plan of an hour has all steps.
    budget = TimeBudget(number(60.0), count(step=30).__next__)
    callbacks = [budget, WeightAverage(number(0.9), number(0)), ValidationProbe(number(2))]
    options = {"max_steps": number(10), "val_check_interval": 2, "plugins": [AtomicCheckpointIO()]}
    trainer = make_trainer(**options, enable_checkpointing=True, callbacks=callbacks)
    trainer.fit(model, datamodule=data)
    path = tmp_path / "some.ckpt"
    trainer.save_checkpoint(path)
    loaded, vocab = load(path)
    assert (loaded.config, vocab) == (TransformerXLConfig(**net), data.vocab)
    assert LanguageModel.load_from_checkpoint(path).hparams.items() >= lengths.items()
    save_folder(loaded, tmp_path / "folder", vocab)
    assert load_checkpoint(tmp_path / "folder").build_network().config == loaded.config


@pytest.mark.parametrize(
    ("kind", "key", "value", "expected"),
    [
        (TransformerXLConfig, "n_layer", 2.0, "a whole number"),
        (EvalLengths, "same_length", "memlen", "mem_len, mem_len+1, all or null"),
        (EvalLengths, "mem_len", np.float64(3), "a whole number or null"),
        (OptimConfig, "lr", Fraction(1, 3), "a number"),
        (StreamConfig, "order", "sorted", "ordered, rolled or shuffled"),
        (WordOptions, "lower_case", 1, "true or false or null"),
        (SubwordOptions, "n_token", "300", "a whole number or null"),
        (TaskConfig, "length", True, "a whole number"),
        (Sampling, "temperature", "hot", "a number"),
        (TextOptions, "raw", np.int64(1), "true or false"),
        (Protocol, "drop_last", torch.ones(2), "true or false"),
        (PlanConfig, "minutes", "5", "a number or null"),
        (WandbConfig, "checkpoints", "newest", "best, all or none"),
        (ReportConfig, "html", None, "true or false"),
        (CheckpointConfig, "every_n_steps", 0.5, "a whole number or null"),
    ],
)
def test_a_setting_of_a_wrong_type_is_refused(kind, key, value, expected):
    with pytest.raises(ValueError, match=rf"^{key}: invalid .+; expected {re.escape(expected)}$"):
        kind(**{key: value})


def test_a_wrong_value_in_a_group_given_by_a_mapping_has_its_whole_key():
    with pytest.raises(ValueError, match=r"^words\.min_freq: invalid -1; expected at least 0$"):
        CorpusDataModule(words={"min_freq": -1})
