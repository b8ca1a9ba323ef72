"""The checkpoint that a command starts from: find it, its settings, what conflicts, its weights."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

from ..checkpoints import LoadedCheckpoint, load_checkpoint
from ..checkpoints.loading import check_weights, find_latest
from ..checkpoints.mirror import fetch_newer
from ..data.datamodule import CorpusConfig, CorpusDataModule, StreamConfig
from ..data.json_lines import LineFormat
from ..data.sources import DataConfig
from ..data.vocab.kinds import BUILT_IN
from ..errors import CheckpointError, DataError, invalid, require
from ..files import expand_home
from ..model import EvalLengths
from ..model.config import AS_TRAINED, CLASS, LEARNED
from ..model.memory import describe_new_distances
from ..runs.folder import (
    CHECKPOINTS,
    CONFIG,
    STATE,
    choose_run,
    list_versions,
    name_job,
    read_job,
    remove_partial_files,
)
from .callbacks.checkpointing import has_stopped
from .callbacks.save_run import MAX_CHANGES, dump_settings, list_changes
from .callbacks.time_budget import TimeBudget
from .module import LanguageModel
from .options import RUNS, TEXT_NAMES, Resume, names_text
from .own_text import read_data
from .ranks import print_once
from .run_state import read_state
from .settings import Given, SettingsLayer

NO_EFFECT_ON_WEIGHTS = {
    *("mem_len", "clamp_len", "same_length", "kernel", "loss_chunk_size"),
    *("dropout", "dropout_type", "dropatt", "init", "init_std", "init_range", "proj_init_std"),
}
"""Settings of the network that may differ from the checkpoint's."""
EQUAL_STATE = {"adamw": "adam"}  # optimizers that can load the state of another one
LINE_SETTINGS = [each.name for each in fields(LineFormat)]  # of the JSON lines of one text
DEFAULT_TEXTS = [getattr(DataConfig, name) for name in TEXT_NAMES]


def find_start(resume: Resume, given: Given) -> LoadedCheckpoint | None:
    """Load the checkpoint to start from; return None for a new run.

    ckpt_path is a file, a run's folder, or one that convert wrote. Without it, or as "last", it is
    the newest intact checkpoint of a run under root. That is the run whose config.yaml is given, or
    else the one of `choose_run`. A newer run is fetched from the mirror before.
    """
    ckpt_path = given.get_text("ckpt_path")
    root = Path(expand_home(given.get_text("trainer.default_root_dir") or RUNS))
    mirror = given.get_text("checkpoint.mirror")
    if ckpt_path not in (None, "last"):
        expected = "never with ckpt_path: one of them says where to start"
        require(resume == "never", "resume", resume, expected)
        return load_checkpoint(ckpt_path)
    if resume == "never" and ckpt_path is None:
        return None
    if not mirror:
        refuse_moved_run(given, root)
    if rank_zero_only.rank == 0:
        remove_partial_files(root)
    fetched = fetch_newer(mirror, root) if mirror else []
    named = [each for each in list_given_runs(given) if each.parent.resolve() == root.resolve()]
    run = named[-1] if named else choose_run(root)
    checkpoint, problems = find_latest(run) if run else (None, [])
    for problem in [*fetched, *problems]:
        print_once(f"warning: {problem}; passed over")
    if checkpoint is None and (resume == "must" or ckpt_path == "last"):
        setting = "resume: must" if resume == "must" else "ckpt_path: last"
        no = "there is no whole checkpoint of"
        raise CheckpointError(f"{setting}: {no} {run or f'a run under {root}'}")
    print_once(f"resume: {checkpoint.path if checkpoint else explain_new_run(root, run)}")
    return checkpoint and check_weights(checkpoint)


def explain_new_run(root: Path, run: Path | None) -> str:
    """Return why a run that may be resumed is a new one: the latest has saved nothing to resume."""
    new = "training starts from the beginning"
    if run is None:
        others = " but runs of other tasks of this array" if list_versions(root) else ""
        return f"nothing under {root}{others}; {new}"
    versions = list_versions(root)
    # A run that is named may be of another folder.
    older = versions[versions.index(run) + 1 :] if run in versions else versions
    intact = (each for each in older if (each / CONFIG).is_file() and find_latest(each)[0])
    older_run = next(intact, None)
    hint = f" (--config {older_run / CONFIG} would continue that run)" if older_run else ""
    return f"{run} has no checkpoint to continue; {new}{hint}"


def check_job(run: Path, parser: ArgumentParser, settings: Namespace, given: Given) -> None:
    """Refuse, in a SLURM job, to change the settings of a run that is not its own, unless the
    config of that run is given."""
    job = name_job()
    other = read_job(run)
    if job in (None, other) or run.resolve() in map(Path.resolve, list_given_runs(given)):
        return
    settings = settings.clone()
    settings.trainer.default_root_dir = str(run.parent)
    changes = list_changes(run / CONFIG, dump_settings(parser, settings)[1])
    whose = f"of job {other}" if other else "of no job"
    asked = f"{run} is {whose}, and job {job} would change {', '.join(changes[:MAX_CHANGES])}"
    expected = f"a trainer.default_root_dir for each job, or --config {run / CONFIG}"
    if changes:
        raise CheckpointError(f"resume: {asked}; expected {expected}")


def find_settings(checkpoint: LoadedCheckpoint, gets_text: bool, given: Given) -> SettingsLayer:
    """Return the checkpoint's settings of `model`; if it gets its run's text, also of `data`.

    Those that name a text are left out if another one is given.
    """
    net = dict(checkpoint.settings["net"])
    # n_token comes from the text; that kernel was the fastest on the machine that trained it.
    for name in ("n_token",) if CLASS in net else ("n_token", "kernel"):
        net.pop(name, None)
    data = {}
    vocab = checkpoint.run_folder / checkpoint.vocab_names[0]
    # Not for a store and for a task, which have their own.
    if vocab.is_file() and read_data(given).uses("vocab"):
        data["vocab"] = str(vocab)
    if gets_text:
        settings = checkpoint.data_settings
        names = settings.keys() & {field.name for field in fields(CorpusConfig)}
        if names_new_text(given, checkpoint):
            # Of another text, "bpe" would make another vocabulary.
            names -= {*TEXT_NAMES, "vocab", *LINE_SETTINGS}
        if vocab.is_file() and is_missing_file(settings.get("vocab")):
            names -= {"vocab"}
        data |= {name: settings[name] for name in names}
    tree = {"model": {**checkpoint.settings, "net": net}, "data": data}
    return SettingsLayer(str(checkpoint.path), tree, is_saved=True)


def is_missing_file(vocab: str | None) -> bool:
    """Return True for the path of a file that is gone, as the vocabulary of a moved run."""
    return bool(vocab) and vocab not in BUILT_IN and not Path(expand_home(vocab)).is_file()


def names_new_text(given: Given, checkpoint: LoadedCheckpoint) -> bool:
    """Return True if the settings name a text, and another one than the checkpoint's run."""
    saved = checkpoint.data_settings
    return bool(saved) and names_text(given) and list_texts(given) != list_texts(saved)


def list_texts(data: Given | dict[str, Any]) -> list[Any]:
    """Return the settings that name the text, with paths as absolute ones."""
    above = "data." if isinstance(data, Given) else ""
    keys = [f"{above}{name}" for name in TEXT_NAMES]
    corpus, *paths = (
        data.get(key, default) for key, default in zip(keys, DEFAULT_TEXTS, strict=True)
    )
    return [corpus, *map(make_absolute, paths)]


def make_absolute(paths: Any) -> Any:
    """Return a path, or paths, as absolute ones; a URL and None as they are."""
    if not paths or isinstance(paths, list):
        return paths and [make_absolute(path) for path in paths]
    return paths if "://" in str(paths) else str(Path(expand_home(str(paths))).resolve())


def list_given_runs(given: Given) -> list[Path]:
    """Return the folders of the runs whose config.yaml is given, in the order of the words."""
    paths = [layer.path for layer in given.configs if layer.path and layer.path.name == CONFIG]
    # A killed run may lack one of them.
    parts = (STATE, CHECKPOINTS)
    return [path.parent for path in paths if any((path.parent / part).exists() for part in parts)]


def refuse_moved_run(given: Given, root: Path) -> None:
    """Refuse to start anew where a config is of a run that is not in its own folder of runs."""
    for folder in list_given_runs(given):
        if folder.parent.resolve() == root.resolve():
            continue
        [config] = [layer for layer in given.configs if layer.path == folder / CONFIG][-1:]
        if config.flat.get("trainer.default_root_dir") == str(root):
            where = f"{folder / CONFIG} is of a run in {folder.parent}"
            raise CheckpointError(
                f"resume: {where}, not under {root}: give --trainer.default_root_dir "
                f"{folder.parent}"
            )


def check_remaining_steps(max_steps: int, checkpoint: dict[str, Any], resume: Resume) -> None:
    """Exit if a resumed run is complete; refuse others that leave no step of max_steps."""
    step = checkpoint.get("global_step", 0)
    if not 0 <= max_steps <= step or (max_steps == step and read_state(checkpoint).validation_due):
        return
    if resume != "never":
        print_once(f"all {max_steps} steps are done; more with --trainer.max_steps")
        raise SystemExit(0)
    expected = f"more than the {step} steps of the checkpoint"
    raise invalid("trainer.max_steps", max_steps, expected)


def explain_no_step(trainer: Trainer) -> str:
    """Return why training ended before its first step, and how to go on."""
    passes = trainer.lightning_module.pass_limit
    by_steps = "max_epochs" if passes and trainer.max_steps == passes.n_step else "max_steps"
    if trainer.limit_train_batches == 0:
        return "trainer.limit_train_batches is 0: no step is taken"
    if trainer.max_steps == 0:
        return f"trainer.{by_steps} is 0: no step is taken"
    if any(map(has_stopped, trainer.early_stopping_callbacks)):
        return "EarlyStopping has ended this run; a larger patience would continue it"
    has_passes_left = not passes or trainer.global_step < passes.last_step
    if has_passes_left and any(isinstance(each, TimeBudget) for each in trainer.callbacks):
        return "plan.minutes are used up; more with --plan.minutes"
    if 0 <= trainer.max_steps <= trainer.global_step:
        return f"all {trainer.max_steps:,} steps are done; more with --trainer.{by_steps}"
    return "trainer.max_time, of all parts of the run together, is used up"


def check_same_model(model: Namespace, saved: dict[str, Any], training: bool) -> None:
    """Refuse settings that conflict with the checkpoint's weights or optimizer state."""
    net = saved["net"]
    # Learned positions have a weight for each distance.
    tables = {"clamp_len"} if net.get("positions") in LEARNED else set()
    free = {"mem_len", "dropout"} if CLASS in net else NO_EFFECT_ON_WEIGHTS - tables
    for name in sorted(net.keys() - free - {"n_token"}):
        value = list(model.net[name]) if isinstance(model.net[name], tuple) else model.net[name]
        expected = f"{net[name]}, as in the checkpoint (as in its run's config.yaml)"
        require(value == net[name], f"model.net.{name}", value, expected)
    # A converted checkpoint has no optimizer state.
    if training and "optim" in saved:
        name = model.optim.name
        saved_name = saved["optim"]["name"]
        is_same = EQUAL_STATE.get(name, name) == EQUAL_STATE.get(saved_name, saved_name)
        expected = f"{saved_name}, as in the checkpoint; or convert it, and start from its weights"
        require(is_same, "model.optim.name", name, expected)


def check_renamed_text(config: Namespace, checkpoint: LoadedCheckpoint, given: Given) -> None:
    """Refuse to continue a run otherwise than before, whose text is given by another name."""
    check_remaining_steps(config.trainer.max_steps, checkpoint.saved, "never")
    check_same_model(config.model, checkpoint.settings, training=True)
    saved = checkpoint.data_settings
    names = {field.name for field in fields(StreamConfig)} - {"allow_mismatch"}
    for name in sorted(names & saved.keys()):
        # The settings of another text are no defaults of this one.
        is_meant = f"data.{name}" in given.values
        expected = f"{saved[name]}, as this text was read before: give RUN/config.yaml as --config"
        value = config.data[name]
        require(is_meant or value == saved[name], f"data.{name}", value, expected)


def notice_new_distances(settings: Namespace, checkpoint: LoadedCheckpoint) -> None:
    """Print if a measurement has larger distances than the training of its checkpoint had."""
    model = settings.model
    data = CorpusConfig(**settings.data.as_dict())
    # Where they are not of evaluation, the network's own may have been changed.
    given = {name: getattr(model, f"eval_{name}") for name in vars(AS_TRAINED)}
    lengths = {n: model.net.get(n) if given[n] is None else given[n] for n in given}
    reading = EvalLengths(**lengths), data.eval_tgt_len + data.eval_ext_len, None
    fix = "--model.eval_clamp_len {}"
    trained = checkpoint.config, checkpoint.trained_len
    if notice := describe_new_distances(*trained, *reading, fix):
        print_once(notice)


def load_weights(source: LoadedCheckpoint, model: LanguageModel, data: CorpusDataModule) -> None:
    """Load the weights of another run; vocabularies must be equal, or of equal size if unknown."""
    vocab = source.load_vocabulary()
    n_token = source.config.n_token
    if vocab is not None:
        data.load_state_dict({"vocab": vocab.to_json()})
    elif n_token != data.n_token:
        sizes = f"{data.n_token} tokens are not the {n_token} of the weights"
        raise DataError(f"data.vocab: {sizes}; give the vocabulary that it was trained with")
    model.net.load_state_dict(source.weights)
    if not source.path.is_dir():
        new = "a new optimizer and step 0; --data.allow_mismatch true would continue instead"
        print_once(f"fine-tuning on {data.config.name}: weights of {source.path}, {new}")
