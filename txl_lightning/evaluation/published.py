"""Published results of the protocols, and whether an evaluation reaches one."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..data.corpora import CORPORA
from ..data.store import EvalText
from ..data.tokens import TextTokens
from ..data.vocab.words import Words
from .protocols import Protocol

METRICS = {"bits": "bits_per_byte", "perplexity": "perplexity"}
WORDS = "bits_per_word"  # in the record of a vocabulary of words alone
COUNTED = ("line_end", "lower_case")  # options of words that decide which tokens are counted


class Result(NamedTuple):
    """A published result on the test text of a corpus."""

    corpus: str
    number: str
    """As printed: its digits say how exact it is."""
    source: str
    vocab_tokens: int | None = None
    """Words of the vocabulary, with the end of lines; None for a result in bits."""


PAPER = "Dai et al. 2019, Table"
NVIDIA = "NVIDIA's README, 8 A100"
WT103 = 267_735
RESULTS = {
    "paper-enwik8-base": Result("enwik8", "1.06", f"{PAPER} 2"),
    "paper-enwik8-large": Result("enwik8", "0.99", f"{PAPER} 2"),
    "paper-text8-large": Result("text8", "1.08", f"{PAPER} 3"),
    "paper-wt103-base": Result("wikitext103", "24.0", f"{PAPER} 1", WT103),
    "paper-wt103-large": Result("wikitext103", "18.3", f"{PAPER} 1", WT103),
    "paper-lm1b-large": Result("lm1b", "21.8", f"{PAPER} 4", 793_471),
    "paper-ptb": Result("ptb", "54.52", f"{PAPER} 5", 10_000),
    "nvidia-wt103-base": Result("wikitext103", "23.24", NVIDIA, WT103),
    "nvidia-wt103-large": Result("wikitext103", "18.18", NVIDIA, WT103),
    "fairseq-wt103": Result("wikitext103", "23.70", "fairseq's README", WT103),
}
"""By protocol. None is published for text8's base; lm1b's base in the paper is another network."""


def list_changed_reading(text: EvalText, protocol: Protocol) -> list[str]:
    """Return the settings by which the tokens of a corpus, or what is read before them, are others
    than those of the protocol's published result."""
    result = RESULTS.get(protocol.name)
    if result is None or text.corpus != result.corpus:
        return []
    changed = []
    if result.vocab_tokens is not None and text.vocab.unit == Words.unit:
        standard = CORPORA[result.corpus].words.fill()
        own = text.vocab.options if isinstance(text.vocab, Words) else None
        names = [name for name in COUNTED if getattr(own, name, None) != getattr(standard, name)]
        changed = [f"words.{name}" for name in names]
    # All were measured on one text, also lm1b's, whose lines are documents by default here.
    has_documents = isinstance(text.tokens, TextTokens) and len(text.tokens.starts) > 1
    return changed + ["document_unit"] * has_documents


def compare_published(record: Mapping[str, Any], protocol: Protocol) -> dict[str, Any] | None:
    """Return the published result of a protocol, and whether the record of `evaluate` reaches it.

    `reached` is True if the record's value, rounded to the published digits, is at most the
    published number; None if the two cannot be compared, for the `reason`. Without a published
    result for the protocol and the record's corpus, there is nothing to return.
    """
    result = RESULTS.get(protocol.name)
    if result is None or record["corpus"] != result.corpus:
        return None
    metric = METRICS[protocol.unit]
    reason = find_difference(record, protocol, result)
    reached = None
    if reason is None:
        digits = len(result.number.partition(".")[2])
        reached = round(record[metric], digits) <= float(result.number)
    about = {"number": result.number, "unit": metric, "source": result.source}
    return about | {"reached": reached, "reason": reason}


def find_difference(record: Mapping[str, Any], protocol: Protocol, result: Result) -> str | None:
    """Return why a record has no published number beside it; None if it has."""
    if record["split"] != "test":
        return f"it is of the test text, not of split {record['split']}"
    if record["changed"]:
        return f"{', '.join(record['changed'])} differ from the protocol"
    if protocol.adaptation.adapts:
        return "it is without adaptation"
    if protocol.unit == "perplexity" and WORDS not in record:
        return "it is a perplexity of words"
    n_token = record["vocab_tokens"]
    # Of fewer words, more are unknown, and these are easy to predict.
    if result.vocab_tokens not in (None, n_token):
        return f"it is with a vocabulary of {result.vocab_tokens:,} words, not of {n_token:,}"
    if result.vocab_tokens is None and record["unknown_share"]:
        return "it has no unknown text"
    return None


def format_published(published: Mapping[str, Any]) -> str:
    """Return the line of a published result, which ends with "reached" or "not reached"."""
    unit = published["unit"].replace("_", " ")
    about = f"published: {published['number']} {unit} ({published['source']})"
    if published["reason"]:
        return f"{about}: not compared, because {published['reason']}"
    return f"{about}: {'reached' if published['reached'] else 'not reached'}"
