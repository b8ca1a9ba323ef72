"""The splits that the names of documents name: train, val and test."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..errors import DataError, print_notice
from ..process import is_child

SPLITS = ("train", "val", "test")
NAMED = {
    "train": ("train", "training", "trainset", "trn"),
    "val": ("val", "valid", "validation", "valset", "dev", "devel", "development", "devset"),
    "test": ("test", "testing", "testset", "tst"),
}
NAMED["val"] += ("validate", "validset", "eval", "evaluation")
WORDS = {word: split for split, words in NAMED.items() for word in words}
INSIDE = re.compile("|".join(sorted(WORDS, key=len, reverse=True)))  # the longest comes first


def group_by_split(
    path: Path, documents: Mapping[str, Sequence[Any]], is_cut: bool
) -> dict[str, list[Any]] | None:
    """Return the slices of documents, by name, of the split that each name names; None if the names
    give no splits."""
    sizes = {name: sum(part.n_byte for part in parts) for name, parts in documents.items() if parts}
    named = assign_splits(path, sizes, is_cut) if len(sizes) > 1 else {}
    splits: dict[str, list[Any]] = {split: [] for split in SPLITS}
    for name, split in named.items():
        splits[split] += documents[name]
    return splits if named else None


def assign_splits(path: Path, sizes: Mapping[str, int], is_cut: bool) -> dict[str, str]:
    """Return the split of each document, by name; {} if the names do not give the splits.

    They do if half of the documents name one, or documents of two splits have half of the bytes.
    A document that names none is then a DataError. `is_cut`: otherwise the documents are cut, and
    if some name a split, a warning says so.
    """
    found = find_splits([*sizes])
    named = {name: split for name, split in found.items() if split}
    if not named:
        return {}
    n_byte = sum(sizes[name] for name in named) if len({*named.values()}) > 1 else 0
    is_most = 2 * len(named) >= len(sizes) or 2 * n_byte >= sum(sizes.values())
    is_one = len({*found.values()}) == 1
    if is_most and not is_one:
        require_no_stray(path, named, found.keys() - named.keys())
        return named
    if is_cut:
        reason = "all have the same one" if is_one else "most documents have none"
        print_warning(path, f"names of splits are not used, as {reason}: {list_first([*named])}")
    return {}


def require_no_stray(path: Path, named: Mapping[str, str], strays: Iterable[str]) -> None:
    for stray in sorted(strays):
        example = next(iter(named))
        problem = f"{stray} is not in train, val or test, but others are, as {example}"
        raise DataError(f"{path}: {problem}; rename or move one")
    if missing := [split for split in SPLITS if split not in named.values()]:
        listed = " or ".join(missing)
        print_warning(path, f"no name of a file or a folder has {listed}, which is empty")


def print_warning(path: Path, text: str) -> None:
    if not is_child():
        print_notice(f"warning: {path}: {text}")


def warn_of_order(path: Path, names: Iterable[str]) -> None:
    """Say which of three files is of which split: they may be meant as splits, by other names."""
    listed = ", ".join(f"{split} {name}" for split, name in zip(SPLITS, names, strict=True))
    print_warning(path, f"no name has train, val or test; by the order of names: {listed}")


def find_splits(names: Sequence[str]) -> dict[str, str | None]:
    """Return the split that each name names.

    The first word that names one counts, after the words with which all names begin.
    """
    words = {name: list_words(name) for name in names}
    columns = zip(*words.values(), strict=False)
    n_shared = len([*takewhile(lambda column: len({*column}) == 1, columns)])
    for first in (n_shared, 0):
        found = {name: find_split(each[first:]) for name, each in words.items()}
        if any(found.values()):
            return found
    return find_inside({name: "".join(each) for name, each in words.items()})


def list_words(name: str) -> list[str]:
    """Return the words of a path in small letters: wikiTrain-2.txt has wiki, train and txt."""
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.findall(r"[^\W\d_]+", parts.casefold())


def find_split(words: Iterable[str]) -> str | None:
    return next((WORDS[word] for word in words if word in WORDS), None)


def find_inside(letters: Mapping[str, str]) -> dict[str, str | None]:
    """Return the same for words run together, if the names differ in nothing else: wikitrain."""
    matches = {name: INSIDE.search(each) for name, each in letters.items()}
    found = {name: match and WORDS[match[0]] for name, match in matches.items()}
    rests = {INSIDE.sub("", each, 1) for each in letters.values()}
    is_given = len(rests) == 1 and len({*found.values()}) > 1
    return found if is_given else dict.fromkeys(letters)


def list_first(names: Sequence[str]) -> str:
    more = ["..."] if len(names) > 5 else []
    return ", ".join([*names[:5], *more])
