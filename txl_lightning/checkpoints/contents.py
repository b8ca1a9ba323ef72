"""Contents of untrusted files: tensors, settings and vocabularies; names and shapes of weights.

A file that would execute code is refused. Nothing is added to a vocabulary.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..data.vocab import Bytes, Vocabulary, WordOptions, Words, read_vocabulary_file
from ..data.vocab.words import UNKNOWN
from ..errors import (
    CheckpointError,
    ClassError,
    DataError,
    NonFiniteError,
    invalid_text,
    require,
)
from ..files import LFS_POINTER, name_in_utf8, read_json, replace_file
from ..model import Network, NetworkConfig
from ..runs.folder import VOCAB

# Matches, in torch's error, the class that a file would import.
CODE = re.compile(r"GLOBAL (\S+)")
SAFE_EXPORT = (
    "save its tensors with the code that wrote it, torch.save(model.state_dict(), 'sd.pt'), and "
    "the keywords of the model's constructor as JSON"
)
SAFE_WORDS = "with the code that wrote it, json.dump(tokenizer.idx2sym, open('words.json', 'w'))"
PICKLED = (".pkl", ".pickle", ".bin", ".pt")
# Line end option for each symbol of the original.
LINE_ENDS = {"<eos>": "eos", "<S>": "double_eos"}
# Tensors of other codes that are not weights.
COMPUTED = {"pos_emb.inv_freq", "transformer.pos_emb.inv_freq"}
PAGE = "a web page in place of the file; download the file itself"
SUBSTITUTES = {
    LFS_POINTER: "a Git LFS pointer in place of the file; run: git lfs pull",
    b"<!doctype html": PAGE,
    b"<html": PAGE,
}
"""First bytes of a file if a download did not bring its content."""
SHARDED = (
    "its tensors are in several files, with an .index.json; expected one file, as save_pretrained "
    "writes with max_shard_size='1000GB'"
)
Tensors = tuple[Tensor, ...]


def load_content(path: Path, stand_ins: Sequence[Any] = ()) -> Any:
    """Load a file of safetensors or torch.save: tensors, plain values, and `stand_ins`.

    `stand_ins` are allowed classes that only store values (torch.serialization.safe_globals). A
    missing file is a ValueError; one that is damaged or would execute code, a CheckpointError.
    """
    is_pickle = path.suffix != ".safetensors"
    expected = "a file that torch.save wrote" if is_pickle else "a safetensors file"
    with (
        refuse_damaged(path, f"{path}: damaged, or not {expected}"),
        torch.serialization.safe_globals(list(stand_ins)),
        name_in_utf8(path) as name,
    ):
        return torch.load(name, "cpu", weights_only=True) if is_pickle else load_file(name)


def load_json(path: Path) -> dict[str, Any]:
    """Load the settings of a JSON file; errors are those of `load_content`."""
    require_readable(path)
    return read_json(path, refusal=CheckpointError)


def require_readable(path: Path) -> None:
    """Raise ValueError for a missing file, CheckpointError for one that has no content to read."""
    try:
        if not path.is_file():
            raise ValueError(f"{path}: {SHARDED if has_tensors(path) else 'no such file'}")
        refuse_substitute(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def has_tensors(path: Path) -> bool:
    """Return True if there is the file, or the index of several in its place."""
    return path.is_file() or path.with_name(f"{path.name}.index.json").is_file()


def refuse_substitute(path: Path) -> None:
    """Raise CheckpointError for what a download may leave in place of a file."""
    with path.open("rb") as file:
        first = file.read(64).lstrip().lower()
    for begin, what in SUBSTITUTES.items():
        if first.startswith(begin):
            raise CheckpointError(f"{path}: {what}")


@contextmanager
def refuse_damaged(path: Path, message: str) -> Iterator[None]:
    """Turn any error of reading a file into a CheckpointError."""
    require_readable(path)
    try:
        yield
    except MemoryError:
        raise
    except ClassError as error:
        raise CheckpointError(f"{path}: {error}") from error
    # Random bytes make torch.load raise any error: UnicodeDecodeError, OSError, ...
    except Exception as error:
        if match := CODE.search(str(error)):
            message = f"{path}: refused: reading it would execute {match[1]}; {SAFE_EXPORT}"
        raise CheckpointError(message) from error


@contextmanager
def refuse_invalid_values(path: Path) -> Iterator[None]:
    """Turn errors from invalid values into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: a setting has a wrong type ({reason})") from error


def require_tensors(path: Path, content: Any) -> dict[str, Tensor]:
    """Return the content of a file if it is a dict of tensors; else CheckpointError."""
    pairs = content.items() if isinstance(content, Mapping) else [(None, None)]
    others = {
        str(name)
        for name, each in pairs
        if not (isinstance(name, str) and isinstance(each, Tensor))
    }
    if others:
        found = f"; no tensors: {list_names(others)}" if isinstance(content, Mapping) else ""
        raise CheckpointError(f"{path}: not a state_dict; expected tensors by name{found}")
    return dict(content)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file atomically, with the metadata that other codes expect."""
    # safetensors refuses tensors that share memory.
    copies = {name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}
    # safetensors' save_file reports the system's error only as text.
    replace_file(path, lambda part: part.write_bytes(save(copies, {"format": "pt"})))


def read_vocabulary(name: str, n_token: int) -> Vocabulary:
    """Read the vocabulary of a network with `n_token` ids: "bytes", or a file; else DataError."""
    if Path(name).suffix in PICKLED:
        raise DataError(f"vocab: {name}: refused: a pickle can execute code; {SAFE_WORDS}")
    try:
        if name == "bytes":
            return require_size(Bytes(), n_token)
        refuse_substitute(Path(name))
        return require_size(read_vocabulary_file(Path(name), make_words), n_token)
    except CheckpointError as error:
        raise DataError(f"vocab: {error}") from error
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise invalid_text(f"vocab: {name}", error) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"vocab: {name}: {reason}") from error


def load_vocabulary_in(
    folder: Path, n_token: int, names: Sequence[str] = (VOCAB, "vocab.txt")
) -> Vocabulary | None:
    """Load the first of these files that is in the folder; None if there is none of them."""
    paths = [folder / name for name in names if (folder / name).is_file()]
    return read_vocabulary(str(paths[0]), n_token) if paths else None


def make_words(words: Sequence[Any], lower_case: bool = False) -> Words:
    """Make a vocabulary; its symbols determine line ends and the unknown word."""
    line_end = next((end for symbol, end in LINE_ENDS.items() if symbol in words), "none")
    unknown = "unk" if any(symbol in words for symbol in UNKNOWN) else "error"
    options = WordOptions(lower_case=lower_case, line_end=line_end, unknown=unknown)
    return Words.from_list(words, options)


def require_size(vocab: Vocabulary, n_token: int) -> Vocabulary:
    if vocab.n_token != n_token:
        raise DataError(f"it has {vocab.n_token} tokens; the network has {n_token}")
    return vocab


class Part(NamedTuple):
    """A tensor of another code and the one or two of ours with its values, or the reverse."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Callable[..., Tensors] = lambda *tensors: tensors
    to_theirs: Callable[..., Tensors] = lambda *tensors: tensors


class WeightMap(NamedTuple):
    """The names that another code has for the weights of a network."""

    parts: list[Part]
    copies: dict[str, str]
    """Optional tensors that repeat another one: name of the copy -> name of the source."""


def map_weights(config: NetworkConfig, map_weight: Callable[[str], Part | None]) -> WeightMap:
    """Map every weight of a network by name; None if it is in the part of another weight."""
    parts = []
    copies = {}
    first: dict[Tensor, str] = {}
    for ours, weight in make_empty_network(config).state_dict(keep_vars=True).items():
        if part := map_weight(ours):
            parts.append(part)
            # A weight that is shared has several names.
            source = first.setdefault(weight, part.theirs[0])
            if source != part.theirs[0]:
                copies[part.theirs[0]] = source
    return WeightMap(parts, copies)


def map_own_weights(config: NetworkConfig) -> WeightMap:
    return map_weights(config, lambda name: Part((name,), (name,)))


class SkipInit(TorchFunctionMode):
    """Leave weights without values: random ones take time, on the meta device 2 s of imports."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(call, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"]
        return call(*args, **kwargs)


def make_empty_network(config: NetworkConfig) -> Network:
    """Return a network with names and shapes on the meta device; no memory is allocated."""
    try:
        with torch.device("meta"), SkipInit():
            return config.build()
    except RuntimeError as error:
        raise ValueError(f"net: sizes beyond those of tensors: {error}") from error


def build_network(ours: Mapping[str, Tensor], config: NetworkConfig) -> Network:
    """Build a network, in eval mode and the precision of its weights, from `match_weights`."""
    with SkipInit():
        model = config.build()
    model = model.to(next(each.dtype for each in ours.values() if each.is_floating_point()))
    model.load_state_dict(ours)
    return model.eval()


def require_finite(path: Path, model: Network) -> None:
    """Raise NonFiniteError for weights that would make every result NaN."""
    wrong = {name for name, each in model.state_dict().items() if not each.isfinite().all()}
    if wrong:
        raise NonFiniteError(f"{path}: values that are not finite: {list_names(wrong)}")


def match_weights(
    theirs: Mapping[str, Tensor],
    map_names: Callable[[NetworkConfig], WeightMap],
    config: NetworkConfig,
) -> dict[str, Tensor]:
    """Return tensors of any code under the names of a network, which is not built.

    Raises:
        ValueError: a tensor is missing, unknown, of another shape than the settings imply, or
            differs from the one it should repeat; the message names it.
    """
    deepest = f"at most {len(theirs)}, as there are {len(theirs)} tensors"
    n_layer = getattr(config, "n_layer", 0)
    require(n_layer <= len(theirs), "n_layer", n_layer, deepest)
    names = map_names(config)
    copies = {name: source for name, source in names.copies.items() if source in theirs}
    for name, source in copies.items():
        if name in theirs and not torch.equal(theirs[name], theirs[source]):
            raise ValueError(f"state_dict: {name} and {source} differ; the settings share them")
    state = {name: theirs[source] for name, source in copies.items()} | dict(theirs)
    needed = {name for part in names.parts for name in part.theirs}
    extra = state.keys() - needed - names.copies.keys() - COMPUTED
    wrong = {"missing": needed - state.keys(), "left over": extra}
    if lists := [f"{key}: {list_names(some)}" for key, some in wrong.items() if some]:
        raise ValueError(f"state_dict: {'; '.join(lists)}")
    shapes = make_empty_network(config).state_dict()
    ours: dict[str, Tensor] = {}
    for part in names.parts:
        ours |= zip(part.ours, convert_part(part, state, shapes), strict=True)
    return ours


def list_names(names: set[str], limit: int = 4) -> str:
    shown = ", ".join(sorted(names)[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def convert_part(part: Part, state: Mapping[str, Tensor], shapes: Mapping[str, Tensor]) -> Tensors:
    """Return our tensors of a part; ValueError if they do not have the shapes of the network."""
    theirs = [state[name] for name in part.theirs]
    expected = [shapes[name] for name in part.ours]
    try:
        ours = part.to_ours(*theirs)
    except (RuntimeError, LookupError):
        ours = ()
    floating = {tensor.is_floating_point() for tensor in (*theirs, *expected)} in ({True}, {False})
    if floating and [tensor.shape for tensor in ours] == [tensor.shape for tensor in expected]:
        return ours
    kinds = [f"{list(tensor.shape)} {str(tensor.dtype)[6:]}" for tensor in theirs]
    allowed = [str(list(tensor.shape)) for tensor in part.to_theirs(*expected)]
    raise ValueError(
        f"state_dict: {', '.join(part.theirs)}: invalid {', '.join(kinds)}; expected "
        f"{', '.join(allowed)} of floating point, by the settings"
    )


def export_weights(ours: Mapping[str, Tensor], names: WeightMap) -> dict[str, Tensor]:
    """Return our tensors, and copies of shared ones, under another code's names."""
    theirs: dict[str, Tensor] = {}
    for part in names.parts:
        converted = part.to_theirs(*(ours[name] for name in part.ours))
        theirs |= zip(part.theirs, converted, strict=True)
    return theirs | {name: theirs[source] for name, source in names.copies.items()}
