"""Load and verify a checkpoint of fit, or a folder that convert wrote.

convert writes model.safetensors, config.json and vocab.json.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.vocab import Vocabulary, load_vocabulary
from ..errors import CheckpointError, ClassError, DataError, print_notice
from ..files import hash_file, load_yaml, name_in_utf8
from ..model.config import describe_config, make_config
from ..model.contract import Network, NetworkConfig
from ..runs import folder as runs
from . import contents, saving

if TYPE_CHECKING:
    from ..data.store import Store
    from ..data.tasks import TaskStore

FOREIGN = "ckpt_path: {} is not a checkpoint written by fit"
USUAL_TGT_LEN = 128
GIVE_TEXT = "give a text with --path"
NAME_TEXT = "remove it, and name the text with --data.path or --data.corpus"  # of fit and test


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint of fit, or a folder that convert wrote, in the form in which fit saves it."""

    path: Path
    """The file or the folder."""
    sha256: str
    """Checksum of the file with the weights, or of all such files."""
    saved: dict[str, Any]
    """Content that Lightning saves and loads; tensors of a file are still on disk (mmap)."""
    vocab_names: tuple[str, ...] = (runs.VOCAB, "vocab.txt")
    """Files that may have the vocabulary, in the run's folder."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the LanguageModel; of a folder, only those of the network ("net")."""
        with self.refuse_damaged():
            return self.saved["hyper_parameters"]

    @property
    def tgt_len(self) -> int:
        """Segment length of training; a usual length if it is unknown."""
        settings = self.saved.get("datamodule_hyper_parameters", {})
        return settings.get("data", {}).get("tgt_len") or USUAL_TGT_LEN

    @property
    def trained_len(self) -> int | None:
        """Tokens in a segment of training, with those read again; None if unknown, or drawn."""
        sizes = self.saved.get("datamodule_hyper_parameters", {}).get("data", {})
        is_known = "tgt_len" in sizes and self.data_settings.get("segments") != "varlen"
        return sizes["tgt_len"] + sizes["ext_len"] if is_known else None

    @property
    def run_folder(self) -> Path:
        return runs.find_run_folder(self.path)

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """Weights by the names that the network has; CheckpointError if they do not fit it."""
        named = self.saved["state_dict"].items() if "state_dict" in self.saved else ()
        with self.refuse_damaged():
            ours = {name.removeprefix("net."): tensor for name, tensor in named}
            return contents.match_weights(ours, contents.map_own_weights, self.config)

    def build_network(self) -> Network:
        """Return the network in eval mode; a folder's has the precision of its weights."""
        with self.refuse_damaged():
            model = contents.build_network(self.weights, self.config)
            return model if self.path.is_dir() else model.float()

    def load_vocabulary(self) -> Vocabulary | None:
        """Return the vocabulary; only a folder may have none."""
        if self.path.is_dir():
            return contents.load_vocabulary_in(self.path, self.config.n_token, self.vocab_names)
        with self.refuse_damaged():
            return load_vocabulary(self.saved["CorpusDataModule"]["vocab"])

    def build(self) -> tuple[Network, Vocabulary]:
        """Return the network in eval mode and the vocabulary; CheckpointError if it has none."""
        model = self.build_network()
        vocab = self.load_vocabulary()
        if vocab is None:
            raise CheckpointError(f"ckpt_path: {self.path} has no vocabulary; convert with --vocab")
        return model, vocab

    def open_text(self, data_dir: str | None = None) -> "tuple[str, Store | TaskStore]":
        """Return the name of the run's text and its store, from the config.yaml of its folder.

        `data_dir` replaces the data directory of the run. A missing config.yaml, or a text that
        has changed since, is a DataError.
        """
        # Here, because a network and its vocabulary need nothing of the text.
        from ..data.sources import DataConfig

        state = self.saved.get("CorpusDataModule")
        settings = load_data_settings(self.path, GIVE_TEXT)
        path = self.run_folder / runs.CONFIG
        if state is None or not settings:
            missing = f"no {path} names its training text"
            raise DataError(f"ckpt_path: {self.path}: {missing}; {GIVE_TEXT}")
        with contents.refuse_damaged(path, f"{path}: damaged, or not written by fit; {GIVE_TEXT}"):
            names = settings.keys() & {field.name for field in fields(DataConfig)}
            config = DataConfig(**{name: settings[name] for name in names})
        store = (replace(config, data_dir=data_dir) if data_dir else config).open_text()
        if store.fingerprint != state["fingerprint"]:
            changed = f"the checkpoint's is {state['fingerprint']}, this text's {store.fingerprint}"
            raise DataError(f"data ({config.name}): {changed}; {GIVE_TEXT}")
        return config.name, store

    @cached_property
    def data_settings(self) -> dict[str, Any]:
        """The settings of data in the config.yaml of its run; none without a run."""
        return load_data_settings(self.path)

    @property
    def config(self) -> NetworkConfig:
        try:
            return make_config(self.settings["net"])
        except ClassError as error:
            made_with = self.saved[runs.KEY]["environment"]["network"]
            made_with = made_with.replace(" unknown", ", version unknown")
            raise ClassError(f"{error} (it was trained with {made_with})") from error

    def refuse_damaged(self) -> AbstractContextManager[None]:
        if self.path.is_dir():
            return contents.refuse_invalid_values(self.path / saving.WEIGHTS)
        return contents.refuse_damaged(self.path, FOREIGN.format(self.path))


def load(path: str | Path) -> tuple[Network, Vocabulary]:
    """Load the network of a run, in eval mode, and its vocabulary.

    >>> model, vocab = load("version_0")
    >>> vocab.decode(vocab.encode_text("to be"))
    'to be'

    The path is a .ckpt file, a run's folder (for its best.ckpt), or a folder written by convert.
    The network is on the CPU; model.to("cuda") moves it.
    A missing file is a ValueError; a damaged one, or one without a vocabulary, a CheckpointError.
    """
    return load_checkpoint(path).build()


def load_checkpoint(path: str | Path) -> LoadedCheckpoint:
    """Load a checkpoint of fit, or a folder that convert wrote, without executing code.

    A missing file is a ValueError; a file that is damaged, foreign or of a later release, a
    CheckpointError.
    """
    path = runs.find_checkpoint(path)
    if path.is_dir():
        return check_weights(load_folder(path))
    if not path.is_file():
        others = ", ".join(sorted(other.name for other in path.parent.glob("*.ckpt")))
        hint = f" (there is {others})" if others else ""
        expected = "expected a run's folder, a checkpoint of fit, or a folder written by convert"
        raise ValueError(f"ckpt_path: {path}: no such file{hint}; {expected}")
    return check_weights(interpret_file(path, saving.verify_checkpoint(path), load_file(path)))


def check_weights(checkpoint: LoadedCheckpoint) -> LoadedCheckpoint:
    """Refuse weights that do not fit the settings, before building; warn of a missing manifest."""
    path = checkpoint.path
    if not checkpoint.weights:
        raise CheckpointError(FOREIGN.format(path))
    if not path.is_dir() and not (manifest := saving.manifest_path(path)).is_file():
        saving.warn_unverified(path, f"its manifest {manifest.name} is missing")
    return checkpoint


def load_file(path: Path) -> Any:
    with contents.refuse_damaged(path, FOREIGN.format(path)), name_in_utf8(path) as name:
        return torch.load(name, map_location="cpu", mmap=True, weights_only=True)


def interpret_file(path: Path, sha256: str, content: Any) -> LoadedCheckpoint:
    """Return the checkpoint in a file of fit."""
    with contents.refuse_damaged(path, FOREIGN.format(path)):
        version = content.get(runs.KEY, {}).get("format", runs.FORMAT)
    if version > runs.FORMAT:
        supported = f"this release reads formats up to {runs.FORMAT}"
        raise CheckpointError(f"{path}: written by a later release (format {version}); {supported}")
    return LoadedCheckpoint(path, sha256, content)


def find_latest(run: Path) -> tuple[LoadedCheckpoint | None, list[str]]:
    """Load the newest intact checkpoint of a run, if any; return it and the problems of others.

    The newest checkpoint has the most steps: file times are not used. Crash checkpoints are
    skipped.
    """
    problems: list[str] = []
    # Files without a step in a manifest come first; at equal steps, last.ckpt before best.ckpt.
    paths = (run / runs.CHECKPOINTS).glob("*.ckpt")
    listed = [(saving.read_manifest_or_none(path), path) for path in paths]
    claims = [(saving.find_newest_step(entries), path) for entries, path in listed]
    best = None
    best_step = -1
    for claim, path in sorted(claims, reverse=True):
        # After a kill, a manifest may list more steps than its file has.
        if claim <= best_step:
            break
        try:
            if not (manifest := saving.read_manifest(path)):
                problems.append(f"{path}: its manifest {saving.manifest_path(path)} is missing")
                continue
            entry = manifest[sha256 := saving.verify_checkpoint(path)]
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if entry["exact"] and entry["step"] > best_step:
            best = (path, sha256)
            best_step = entry["step"]
    return (interpret_file(*best, load_file(best[0])) if best else None), problems


def load_folder(folder: Path) -> LoadedCheckpoint:
    """Load a folder that convert wrote, or save_pretrained of a family that is a network here.

    A CheckpointError if a checksum in it does not match.
    """
    path = folder / runs.CONVERTED
    weights = folder / saving.WEIGHTS
    settings = contents.load_json(path)
    if runs.KEY not in settings:
        # Here, because no other checkpoint needs these networks.
        from ..networks.transformers_config import FAMILIES

        if settings.get("model_type") in FAMILIES:
            return load_family(folder)
        command = f"txl-lightning convert {folder} --out NEW"
        raise CheckpointError(f"{path}: not in our format; {command}")
    with contents.refuse_invalid_values(path):
        if settings[runs.KEY]["format"] > saving.FOLDER_FORMAT:
            supported = f"this one reads formats up to {saving.FOLDER_FORMAT}"
            raise ValueError(f"written by a later release; {supported}")
        net = describe_config(make_config(settings["net"]))
    for each in (weights, folder / runs.VOCAB):
        if each == weights or each.is_file():
            contents.require_readable(each)
    sha256 = hash_file(weights)
    expected, rest = (settings[runs.KEY].get(name) for name in ("weights_sha256", "rest"))
    with contents.refuse_invalid_values(folder / runs.VOCAB):
        actual_rest = saving.hash_rest(folder, settings["net"])
    if rest not in (None, actual_rest):
        raise CheckpointError(f"{path}: damaged: it, or {runs.VOCAB}, was changed")
    if expected is None:
        saving.warn_unverified(weights, f"{runs.CONVERTED} does not have its sha256")
    elif sha256 != expected:
        wrong = f"its sha256 is {sha256[:16]}, that in {runs.CONVERTED} {str(expected)[:16]}"
        raise CheckpointError(f"{weights}: damaged: {wrong}")
    state = {f"net.{name}": tensor for name, tensor in contents.load_content(weights).items()}
    return LoadedCheckpoint(folder, sha256, {"hyper_parameters": {"net": net}, "state_dict": state})


def load_family(folder: Path) -> LoadedCheckpoint:
    """Load a folder of a family of transformers, whose files have no checksums."""
    # Here, because it needs transformers.
    from . import families

    net = families.read_settings(folder)
    state = {f"net.{name}": tensor for name, tensor in families.read_weights(folder).items()}
    saving.warn_unverified(folder, "files of transformers have no checksum")
    if not (folder / families.TOKENIZER).is_file():
        padding = "those that only pad the embedding have probability, too"
        print_notice(f"{folder}: no {families.TOKENIZER}: {net['n_token']:,} tokens; {padding}")
    saved = {"hyper_parameters": {"net": net}, "state_dict": state}
    sha256 = families.hash_weights(folder)
    return LoadedCheckpoint(folder, sha256, saved, (families.TOKENIZER,))


def load_data_settings(checkpoint: Path, advice: str = NAME_TEXT) -> dict[str, Any]:
    """Return the settings of data in the config.yaml of a checkpoint's run; none without a run."""
    path = runs.find_run_folder(checkpoint) / runs.CONFIG
    if not path.is_file():
        return {}
    with contents.refuse_damaged(path, f"{path}: damaged, or not written by fit; {advice}"):
        return dict(load_yaml(path.read_text(encoding="utf-8")).get("data") or {})
