"""Classes of other packages: imported only if the command line allows their package."""

import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from .errors import ClassError, require
from .files import find_config

ALLOWED: list[str] = []  # packages given by --allow_imports
NETWORKS = {
    "CompressiveTransformer": "txl_lightning.networks.compressive.CompressiveTransformerConfig",
    "GatedDeltaNet": "txl_lightning.networks.gated_delta_net.GatedDeltaNetConfig",
    "HuggingFace": "txl_lightning.networks.transformers_config.HuggingFaceConfig",
    "LSTM": "txl_lightning.networks.lstm.LSTMConfig",
    "Mamba2": "txl_lightning.networks.mamba2.Mamba2Config",
    "RecurrentMemoryTransformer": (
        "txl_lightning.networks.recurrent_memory.RecurrentMemoryTransformerConfig"
    ),
}
"""The configs of this package's other networks, by the names that `model.net` takes."""
OWN = {"TransformerXL": "txl_lightning.model.config.TransformerXLConfig"} | NETWORKS
"""The configs of all its networks: the first is that of settings without a class."""
REFUSED = "a setting may not import {}; if it is your own, add --allow_imports {} to the command"
IN_PYTHON = "txl_lightning.imports.allow_imports([{!r}])"
LOCAL = (
    "a setting may not import {}, which a notebook, a script or a function defines; {}define it at "
    "the top of a module, and name that in the checkpoint (docs/own_network.md)"
)
PLACES = "; it must be in the current folder, in a folder of PYTHONPATH, or installed"
# Modules that are something else in another process.
SCRIPTS = ("__main__", "__mp_main__")


def allow_imports(packages: Iterable[str]) -> None:
    """Let settings and checkpoints name classes of these packages, and of no others."""
    for package in packages:
        # jsonargparse is never allowed: its settings say what may be imported.
        parts = package.split(".")
        is_valid = all(map(str.isidentifier, parts)) and parts[0] != "jsonargparse"
        require(is_valid, "allow_imports", package, "the name of a package of yours")
    ALLOWED[:] = packages
    if ALLOWED and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def is_class_path(name: Any) -> bool:
    """Return True for a text such as my_package.MyClass, but not for a file such as words.txt."""
    parts = name.split(".") if isinstance(name, str) else [""]
    return all(map(str.isidentifier, parts)) and len(parts) > 1 and parts[-1][0].isupper()


def names_class(text: Any) -> bool:
    """Return True for the path of a class, unless a file has that name."""
    return is_class_path(text) and not os.path.exists(text)


def find_network_class(name: Any) -> str | None:
    """Return the path of the class that a setting names: of this package, or another one's."""
    if isinstance(name, str) and name in OWN:
        return OWN[name]
    return name if names_class(name) else None


def suggest_config(path: str) -> str:
    """Return which config has the settings of a network's class, as the end of a message."""
    name = {OWN[each]: each for each in OWN}.get(path, path)
    config = f"networks/{re.sub('(?<=[a-z])(?=[A-Z])', '_', name).lower()}"
    has_one = find_config(config) != config
    return f"for {name} give {f'--config {config}' if has_one else 'a config of that network'}"


def name_class(kind: type) -> str:
    """Return the name by which `import_class` finds a class again, if it is one of a module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def list_foreign_classes(config: Any, vocab: Any) -> dict[str, str]:
    """Return the classes of a network and its vocabulary, which a checkpoint names, that are not of
    this package."""
    names = {"network": name_class(type(config)), "vocabulary": name_class(type(vocab))}
    if is_class_path(scheme := getattr(config, "positions", "")):
        names["positions"] = scheme
    own = ("txl_lightning", "builtins")
    return {key: name for key, name in names.items() if name.partition(".")[0] not in own}


def is_local(name: str) -> bool:
    """Return True for a name that no other process can find: of a notebook, script or function."""
    return name.partition(".")[0] in SCRIPTS or "<locals>" in name


def warn_if_local(key: str, name: str) -> None:
    """Warn of a class whose checkpoints no command could load."""
    module, _, attribute = name.rpartition(".")
    # A class within a class is not found either.
    if is_local(name) or not hasattr(sys.modules.get(module), attribute):
        advice = "define it at the top of a module, and import it from there"
        warnings.warn(f"{key}: no command can load checkpoints with {name}; {advice}", stacklevel=2)


def refuse_class(name: str) -> str:
    """Return why a setting or a checkpoint may not name a class, and what allows it."""
    package = name.partition(".")[0]
    if not is_local(name):
        return f"{REFUSED.format(name, package)} (in Python: {IN_PYTHON.format(package)})"
    is_here = package in SCRIPTS and "<locals>" not in name
    here = f"there, call {IN_PYTHON.format(package)}; elsewhere, " if is_here else ""
    return LOCAL.format(name, here)


def import_class(key: str, name: str) -> Any:
    """Import the class that a setting names; a ClassError if it is not allowed, or is missing."""
    module, _, attribute = name.rpartition(".")
    is_ours = name in OWN.values()
    if not is_ours and not any(name.startswith(f"{allowed}.") for allowed in ALLOWED):
        raise ClassError(f"{key}: {refuse_class(name)}")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        reason = LOCAL.format(name, "") if is_local(name) else f"{name} cannot be imported: {error}"
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module.split(".")[0]
        reason += PLACES if is_absent and not is_local(name) else ""
        raise ClassError(f"{key}: {reason}") from error


def find_version(package: str) -> str:
    """Return the version of an imported package; "unknown" if it has none."""
    try:
        return str(getattr(sys.modules[package], "__version__", "") or metadata.version(package))
    except metadata.PackageNotFoundError:
        return "unknown"


def hash_code(kind: type) -> str:
    """Return a hash of the modules of a class and its bases, and of the versions of packages.

    Our own modules and Python's count as unchanged.
    """
    sha256 = hashlib.sha256()
    ours = {__name__.partition(".")[0], *sys.stdlib_module_names}
    for name in sorted({base.__module__ for base in kind.__mro__}):
        package = name.partition(".")[0]
        if package not in ours:
            file = getattr(sys.modules[name], "__file__", None)
            sha256.update(f"{name} {find_version(package)}\n".encode())
            sha256.update(Path(file).read_bytes() if file else b"")
    return sha256.hexdigest()
