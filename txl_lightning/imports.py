"""Classes of other packages: imported only if the command line allows their package."""

import os
import sys
from collections.abc import Iterable
from importlib import import_module, metadata
from typing import Any

from .errors import ClassError, require

ALLOWED: list[str] = []  # packages given by --allow_imports
REFUSED = "a config may not import {}; if it is your own, add --allow_imports {} to the command"


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


def import_class(key: str, name: str) -> Any:
    """Import the class that a setting names; a ClassError if it is not allowed, or is missing."""
    module, _, attribute = name.rpartition(".")
    if not any(name.startswith(f"{allowed}.") for allowed in ALLOWED):
        raise ClassError(f"{key}: {REFUSED.format(name, module.partition('.')[0])}")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ClassError(f"{key}: {name} cannot be imported: {error}") from error


def find_version(package: str) -> str:
    """Return the version of an imported package; "unknown" if it has none."""
    try:
        return str(getattr(sys.modules[package], "__version__", "") or metadata.version(package))
    except metadata.PackageNotFoundError:
        return "unknown"
