"""A sweep's file: W&B's own format, in which this command line's keys are the parameters."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import flatten_settings
from . import engine

METHODS = ("grid", "random", "bayes")
SEARCH = ("method", "parameters", "metric", "command", "program")
"""What a sweep that goes on must have as it began."""


@dataclass(frozen=True)
class SweepFile:
    """What is in it, with the defaults of W&B's schema."""

    path: str
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What W&B groups its runs under."""
        return self.config.get("name") or Path(self.path).stem

    @property
    def metric(self) -> str:
        """The column of metrics.csv."""
        return self.config["metric"]["name"]

    @property
    def sign(self) -> int:
        """What to multiply a value with, so that less is better."""
        return -1 if self.config["metric"].get("goal") == "maximize" else 1

    @property
    def search(self) -> dict[str, Any]:
        """What its trials depend on, as JSON has it."""
        return json.loads(json.dumps({key: self.config.get(key) for key in SEARCH}))

    def best(self, values: tuple[float, ...]) -> float | None:
        """The best of a trial's values, as W&B's engine takes it."""
        return min(values, key=lambda value: self.sign * value, default=None)


def read(path: str) -> SweepFile:
    """A sweep's file, held against W&B's schema.

    Raises:
        ValueError: the file and the key, and what is wrong.
    """
    sweeps = engine.library()
    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    for problem in problems(given):
        raise ValueError(f"{path}: {problem}")
    file = SweepFile(path, sweeps.SweepConfig(given))
    try:
        engine.propose(file.config, 1, [])
    except ValueError as error:
        raise ValueError(f"{path}: parameters: {error}") from error
    return file


def problems(given: Any) -> Iterator[str]:
    """What is wrong with a file: first by the schema, then for this command."""
    sweeps, found = engine.library(), False
    for error in sweeps.config.schema.validator.iter_errors(given):
        key = ".".join(map(str, error.absolute_path)) or "the file"
        yield f"{key}: {reason(error)}{hint(error.instance)}"
        found = True
    if found:
        return
    yield from sweeps.schema_violations_from_proposed_config(given)
    if given["method"] not in METHODS:
        yield f"method: invalid {given['method']}; expected one of {', '.join(METHODS)}"
    if "metric" not in given:
        yield "metric: missing; it must have the name of a column of metrics.csv"
    if not given.get("command") and not given.get("program"):
        yield "command: missing; it must run fit, as those in configs/sweeps do"
    for name, parameter in given["parameters"].items():
        if "parameters" in parameter:
            yield f"parameters.{name}: nested; each key must be whole: {name}.KEY"


def reason(error: Any) -> str:
    """What is wrong by the schema, and where there are many ways to be right, with all of them."""
    leaves = list(leaves_of(error))
    strict = [set(e.schema["properties"]) for e in leaves if e.validator == "additionalProperties"]
    known = set().union(*strict)
    unknown = set(error.instance) - known if strict and isinstance(error.instance, dict) else set()
    if unknown:
        said = ", ".join(map(str, sorted(unknown)))
        return f"{said} is unknown; it must be one of {', '.join(sorted(known))}"
    if all(leaf.validator == "required" for leaf in leaves):
        missing = {name for leaf in leaves for name in leaf.validator_value}
        return f"wants {' or '.join(sorted(missing - set(error.instance)))}"
    return error.message


def leaves_of(error: Any) -> Iterator[Any]:
    """Why none of several ways to be right is one, or the error itself."""
    if not error.context:
        yield error
    for inner in error.context:
        yield from leaves_of(inner)


def hint(instance: Any) -> str:
    """What YAML takes for a text, and a person for a number: 1e-4."""
    values = instance.values() if isinstance(instance, dict) else [instance]
    for text in values:
        if isinstance(text, str) and is_number(text):
            number = yaml.safe_dump(float(text)).split()[0]
            return f"; {text} is a text in YAML, and {number} a number"
    return ""


def is_number(text: str) -> bool:
    """Whether a person would take it for one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def flat(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by dotted key; a `config` that is a text of settings is taken apart."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        settings = yaml.safe_load(value) if name == "config" and isinstance(value, str) else None
        found |= flatten_settings(settings) if isinstance(settings, dict) else {name: value}
    return found
