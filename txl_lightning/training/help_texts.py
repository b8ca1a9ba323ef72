"""Texts of the help of fit, validate, test and predict, and which options it shows."""

from ..imports import OWN

SHORT_HELP = """help config ckpt_path resume seed_everything plan.minutes
    model.net.n_layer model.net.n_head model.net.d_model model.net.mem_len model.net.dropout
    model.eval_mem_len model.optim.name model.optim.lr model.optim.schedule
    data.corpus data.path data.vocab data.tgt_len data.batch_size
    trainer.default_root_dir trainer.max_steps trainer.val_check_interval trainer.precision
    trainer.accelerator trainer.devices trainer.logger trainer.callbacks trainer.help"""
"""Options in the help of a command; --help full shows all but the rarer ones of the Trainer."""
TRAINER_HELP = """default_root_dir max_steps max_epochs max_time gradient_clip_val
    accumulate_grad_batches val_check_interval limit_val_batches limit_test_batches
    limit_predict_batches log_every_n_steps accelerator devices num_nodes strategy precision logger
    callbacks enable_progress_bar help"""
"""Options of the Trainer in --help full; --trainer.help shows all of them."""
FIT_ONLY = (
    *("model.optim.", "checkpoint.", "plan.", "wandb.", "report.", "resume", "trainer.max_"),
    *("trainer.gradient_", "trainer.accumulate_", "trainer.val_", "trainer.log_every_"),
)
"""Beginnings of the options that only fit uses."""
GROUPS = {
    "model.net": "Network",
    "model": "Evaluation and compilation",
    "data": "Data",
    "checkpoint": "Checkpoints",
    "trainer": "Trainer",
}
"""Titles in the help; others are the first lines of docstrings."""
NETWORK_HELP = f"""--model.net NAME chooses a network: {", ".join(OWN)}, or a class of
settings of your own. With --help it prints their options."""
WITHOUT_EFFECT = ("weights_only", "verbose", "return_predictions")
"""Options of Lightning whose values are fixed."""
DESCRIPTION = """Every setting is also a key of a YAML file: --config FILE, once or several times.
The last value of a setting counts; options come after all files."""
HELP_TEXTS = {
    "help": "Print these options; --help full prints all.",
    "trainer.help": "Print all of the Trainer's options.",
    "config": "YAML file with settings, or the name of an included config.",
    "print_config": "Print all settings of the run, also those of a recipe or a checkpoint, as a "
    "config, and exit.",
    "explain": "Print each setting of the run that is no default, with where it comes from, and "
    "exit.",
    "seed_everything": "Seed of all random numbers: equal ones give equal runs; true: a random "
    "one; false: none.",
    "data.path": "Your own text: a file, a folder or archive of documents, JSON lines, or three of "
    "these for train, val and test. In fit, for 50 kB or more, a recipe by its size, the device "
    "and the minutes replaces the defaults, unless a config sets a network or an optimizer.",
    "resume": "Continue the latest run under trainer.default_root_dir, in its folder, from its "
    "newest intact checkpoint: auto, if there is one; must, or stop; never.",
    "ckpt_path": "A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.",
    "trainer.default_root_dir": "Folder of runs; each run is a folder version_N in it.",
    "trainer.max_steps": "Steps of training, and with plan.minutes their limit; -1: no end.",
    "trainer.max_epochs": "Passes over the text, which end a run unless max_steps, given at the "
    "same place or later, ends it before; -1: as many as there are steps.",
    "trainer.val_check_interval": "Segments from one validation to the next.",
    "trainer.limit_val_batches": "Most segments that a validation reads; left out, all.",
    "trainer.logger": "Logger besides metrics.csv, for example WandbLogger; false: no other.",
    "trainer.callbacks": "Callbacks besides ours. Your own need --allow_imports PACKAGE on the "
    "command line, which lets options and configs name its classes.",
    "trainer.strategy": "How devices share the work: ddp, fsdp2, or another of Lightning's.",
}
"""Help of single options, and where Lightning's own does not fit an endless loader."""
EVALUATION_TEXTS = {
    "data.path": "Your own text: a file, a folder or archive of documents, JSON lines, or three of "
    "these for train, val and test; left out, that of the run.",
    "trainer.default_root_dir": "Folder into which predict writes; left out, that of the run.",
    "trainer.logger": "Logger of the results, for example WandbLogger; left out, none.",
}
"""Help of options that have another meaning in commands that do not train."""
