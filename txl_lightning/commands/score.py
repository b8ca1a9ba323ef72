"""score: choose among the candidates of n-best lists, with the memory of what came before."""

import json
import math
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from ..checkpoints import LoadedCheckpoint
from ..data.json_lines import (
    DEFAULT_FORMAT,
    KEY,
    LATIN_1,
    LINES,
    LineFormat,
    is_object,
    parse_line,
)
from ..data.vocab import Vocabulary
from ..errors import (
    DataError,
    Settings,
    invalid_text,
    prefix_errors,
    print_notice,
    require,
    suggest_key,
)
from ..files import has_ending, require_shape
from ..generation import StreamingDetokenizer, encode_prompt, score_candidates
from ..generation.candidates import encode_continuation, start_scoring
from ..generation.prompts import encode_start
from ..generation.state import DecodingState
from ..model import Network, Weights
from ..model.adaptation import Adaptation
from ..model.reading import Reader
from .generate import UNFINISHED
from .given_texts import drop_compression, name_given, read_raw_lines
from .inputs import Device, DistanceNotice, hint_at_escapes, load_model, reads_records

ROUNDING = 1e-6  # by which a log-probability may be above 0
RECORDS = (
    "warning: in training each record was a document of its own; here lines follow one another, "
    "which the network never read; evaluate --per_document reads records as training did"
)


@dataclass(frozen=True)
class ScoreOptions(Settings):
    """Settings of scoring."""

    minima: ClassVar = {"batch_size": 1}

    context: str | None = None
    """Text before the first list; left out, a line end."""
    end: str | None = None
    """Text after each candidate, scored with it; left out, a line end if the vocabulary has it."""
    carry: bool = True
    """Remember the lists before; false: only the context, and that of the list."""
    weight: float = 1.0
    """Factor of this model's log-probabilities, in nats, beside scores of another one."""
    surprisal: bool = False
    """Print the nats of each word too."""
    mem_len: int | None = None
    """States remembered; left out, as in training."""
    batch_size: int = 64
    """Most candidates that are read at once."""
    device: Device = None
    """Device of the model; left out, a GPU if there is one."""
    weights: Weights = "float32"
    """Precision of weights, keys and values: bf16 needs less memory, and is less exact."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_weight = math.isfinite(self.weight) and self.weight >= 0
        require(is_weight, "weight", self.weight, "a finite number, 0 or more")


@dataclass(frozen=True)
class CandidateList(Settings):
    """Texts of which one continues the text so far; a line of a .jsonl file."""

    candidates: tuple[str, ...]
    id: str | int | float | None = None
    context: str = ""
    """Text before each candidate, which is not scored."""
    reference: str | None = None
    """The text that follows in fact; without one, the best candidate does."""
    scores: tuple[float, ...] | None = None
    """Log-probabilities of another model in nats, which are added before the best is chosen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        n_candidate = len(self.candidates)
        scores = self.scores
        require(n_candidate > 0, "candidates", "none", "at least one")
        is_finite = not isinstance(self.id, float) or math.isfinite(self.id)
        require(is_finite, "id", self.id, "a finite number, or a text")
        is_each = scores is None or (len(scores) == n_candidate and all(map(math.isfinite, scores)))
        require(is_each, "scores", scores, f"{n_candidate} numbers, one for each candidate")
        # Costs, such as nats, would choose the worst.
        highest = max(scores or (0,))
        expected = "log-probabilities, 0 or less; negate costs"
        require(highest <= ROUNDING, "scores", highest, expected)

    def find_best(self, nats: Sequence[float], weight: float) -> int:
        if self.scores is None:
            return min(range(len(nats)), key=nats.__getitem__)
        return max(range(len(nats)), key=lambda n: self.scores[n] - weight * nats[n])


def score_command(
    ckpt_path: str,
    candidates: str | None = None,
    lines: str | None = None,
    records: LineFormat = DEFAULT_FORMAT,
    adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
    **options: Any,
) -> None:
    """Print the nats of the candidates in each list, and the best one, as a line of JSON.

    The best candidate of a list, or its reference, is remembered when the next list is scored.

    Args:
        ckpt_path: A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.
        candidates: File of lists (.jsonl), or - for the standard input, one in each line:
            candidates and, if wanted, id, context, reference and scores.
        lines: File of text, or - for the standard input: the nats of each line are printed as it
            comes, instead of candidates. With text_key or id_key, or as .jsonl, it has JSON lines.
        records: How JSON lines are read; each of its fields is an option.
        adaptation: What is learned from the lists before; each of its fields is an option.
        **options: As in ScoreOptions.
    """
    path = find_input(candidates, lines, records)
    settings = ScoreOptions(**options)
    adaptation.require_used()
    is_possible = settings.carry or not adaptation.rate
    require(is_possible, "rate", adaptation.rate, "null with carry false")
    hint_at_escapes(context=settings.context, end=settings.end)
    how = settings.device, settings.weights, bool(adaptation.rate)
    checkpoint, model, vocab = load_model(ckpt_path, *how)
    notice = DistanceNotice(checkpoint, settings.mem_len)
    if lines is not None and reads_records(checkpoint):
        print_notice(RECORDS)
    if settings.end is None:
        settings = replace(settings, end=find_end(vocab))
    context = settings.context
    ids_L = encode_start(vocab) if context is None else encode_prompt(context, vocab)
    start = start_scoring(model, ids_L, settings.mem_len, adaptation)
    if adaptation.adapts:
        model = Reader(model, adaptation)
    # Read once, although each list may start from it.
    start = score_candidates(model, start, [])[1]
    state = start
    found = read_lists(path) if lines is None else read_lines(path, records, checkpoint)
    for line, each in found:
        with prefix_errors(f"{name_given(path)}, line {line}", ": "):
            before = state if settings.carry else start
            record, state = score_list(model, vocab, before, each, settings, notice)
        record = record if lines is None else describe_line(line, record)
        print(json.dumps(record, ensure_ascii=False, allow_nan=False), flush=True)


def find_input(candidates: str | None, lines: str | None, records: LineFormat) -> str:
    """Return the path that is given; refuse two, a file of another format, and settings of JSON
    lines where there are none."""
    given = [path for path in (candidates, lines) if path is not None]
    if len(given) != 1:
        problem = "--lines: given with --candidates" if given else "--candidates is missing"
        raise ValueError(f"{problem}; expected a .jsonl file, or -; or --lines alone")
    if candidates is not None:
        require_lists(candidates)
    if lines is None or not has_records(lines, records):
        for key, value in asdict(records).items():
            require(value in (None, False), key, value, "null or false without JSON lines as lines")
    return given[0]


def has_records(path: str, how: LineFormat) -> bool:
    """Return True if a key, or the name of a file, says that its lines are JSON with a text."""
    return has_ending(drop_compression(path), LINES) or bool(how.text_key or how.id_key)


def require_lists(path: str) -> None:
    """Refuse a file of another format; a pipe has no name of one."""
    is_pipe = path == "-" or path.startswith("/dev/") or Path(path).is_fifo()
    is_lists = is_pipe or has_ending(drop_compression(path), LINES)
    require(is_lists, "candidates", path, "a .jsonl file, or - for the standard input")


def describe_line(line: int, record: dict[str, Any]) -> dict[str, Any]:
    """Return what is printed of a line, from the record of a list of this one candidate."""
    identifier = {} if record["id"] is None else {"id": record["id"]}
    names = [name for name in ("nats", "tokens", "unknown", "words") if name in record]
    return {"line": line} | identifier | {name: record[name][0] for name in names}


def find_end(vocab: Vocabulary) -> str:
    """Return a line end, or "" for a vocabulary that does not know it."""
    with suppress(DataError):
        ids = vocab.encode_text("\n")
        return "" if vocab.unknown in ids.tolist() else "\n"
    return ""


def score_list(
    model: Network | Reader,
    vocab: Vocabulary,
    state: DecodingState,
    each: CandidateList,
    settings: ScoreOptions,
    notice: DistanceNotice,
) -> tuple[dict[str, Any], DecodingState]:
    """Return what is printed of a list, and the state with the text that follows."""

    def append(state: DecodingState, text: str) -> DecodingState:
        return state.append_tokens(encode_continuation(text, vocab)[None])

    ids = [encode_continuation(text + settings.end, vocab) for text in each.candidates]
    state = append(state, each.context)
    longest = max(map(len, ids))
    notice.check(int(state.length_B) - 1 + longest, max(state.n_unread, longest))
    nats, state = score_candidates(model, state, ids, settings.batch_size)
    sums = [float(nats_L.double().sum()) for nats_L in nats]
    best = each.find_best(sums, settings.weight)
    record = {"id": each.id, "best": best, "text": each.candidates[best], "nats": sums}
    record["tokens"] = [len(ids_L) for ids_L in ids]
    unknown = [vocab.count_unknown(ids_L.numpy()) for ids_L in ids]
    if any(unknown):
        record["unknown"] = unknown
    if settings.surprisal:
        prefix = state.row_tokens(0)[-UNFINISHED:].tolist()
        pairs = zip(ids, nats, strict=True)
        words = [sum_words(StreamingDetokenizer(vocab, prefix), *pair) for pair in pairs]
        texts = [text + settings.end for text in each.candidates]
        record["words"] = [*map(name_unknown, words, texts)]
    follows = each.candidates[best] if each.reference is None else each.reference
    return record, append(state, follows + settings.end)


def sum_words(text: StreamingDetokenizer, ids_L: Tensor, nats_L: Tensor) -> list[tuple[str, float]]:
    """Return each word, which begins with the space before it, and its nats."""
    pieces = [text.push(index) for index in ids_L.tolist()]
    words = []
    nats = 0.0
    # The last bytes of an incomplete character become text at the end.
    for piece, value in zip([*pieces, text.flush()], [*nats_L.tolist(), 0.0], strict=True):
        nats += value
        if piece:
            is_new = not words or (piece[0].isspace() and words[-1][0].strip())
            word, before = ("", 0.0) if is_new else words.pop()
            words.append((word + piece, before + nats))
            nats = 0.0
    return [*words, ("", nats)] if nats else words


def name_unknown(words: list[tuple[str, float]], text: str) -> list[tuple[str, float]]:
    """Return the words as they stand in the text, also those that the vocabulary does not know."""
    given = text.split()
    places = [n for n, (word, _) in enumerate(words) if word.strip()]
    if len(places) != len(given):
        return words
    named = dict(zip(places, given, strict=True))
    return [
        (word.replace(word.strip(), named[n]) if n in named else word, nats)
        for n, (word, nats) in enumerate(words)
    ]


def read_lists(path: str) -> Iterator[tuple[int, CandidateList]]:
    """Yield the number of each line that is not blank, and its list."""
    known = [field.name for field in fields(CandidateList)]
    for number, raw in enumerate(read_raw_lines(path), 1):
        with explain_line(f"{name_given(path)}, line {number}"):
            # Excel begins a file with a byte order mark.
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if not line.strip():
                continue
            content = json.loads(line)
            # Half of a surrogate pair is no text.
            json.dumps(content, ensure_ascii=False).encode()
            require_shape("list", content, dict)
            for name in content:
                if name not in known:
                    raise ValueError(suggest_key(name, known))
            if "candidates" not in content:
                raise ValueError("candidates: missing; expected a key candidates")
            each = CandidateList(**content)
        yield number, each


def read_lines(
    path: str, records: LineFormat, checkpoint: LoadedCheckpoint
) -> Iterator[tuple[int, CandidateList]]:
    """Return the lines of a text, or the texts of JSON lines, under the key of training if no other
    is given."""
    text_key = records.text_key or checkpoint.data_settings.get("text_key")
    if not has_records(path, records):
        return read_texts(path, text_key or KEY)
    return read_records(path, replace(records, text_key=text_key))


def read_texts(path: str, key: str) -> Iterator[tuple[int, CandidateList]]:
    """Yield the number of each line of a text, as soon as it comes, and a list of it alone.

    A first line that has a text under the key is a warning.
    """
    for number, raw in enumerate(read_raw_lines(path), 1):
        with explain_line(f"{name_given(path)}, line {number}"):
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        if number == 1 and is_object(raw, any_object=False, key=key):
            fix = f"text_key {key} reads the texts of JSON lines"
            print_notice(f"warning: {name_given(path)}: line 1 is read as plain text; {fix}")
        yield number, CandidateList((line.removesuffix("\n").removesuffix("\r"),))


def read_records(path: str, how: LineFormat) -> Iterator[tuple[int, CandidateList]]:
    """Yield the number of each JSON line that is not blank, as soon as it comes, and a list of its
    text alone."""
    name = name_given(path)
    for number, raw in enumerate(read_raw_lines(path), 1):
        if not raw.removeprefix(BOM_UTF8).strip():
            continue
        try:
            text, identifier = parse_line(f"line {number:,}", raw, how)
        except DataError as error:
            if not how.skip_bad_lines:
                raise DataError(f"{name}: {error}; expected {how.example}") from error
            print_notice(f"warning: {name}: left out: {error}")
            continue
        yield number, CandidateList((text.decode(),), id=identifier)


@contextmanager
def explain_line(where: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{invalid_text(where, error)}; {LATIN_1}") from error
    except UnicodeEncodeError as error:
        raise invalid_text(where, error) from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where}: not JSON") from error
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
