"""The primary contrasts: at most 25, chosen by question.

Those of attention_length, copying, original and of 30 minutes of words were chosen before their
runs. The others were chosen when their results were known, from the hypotheses that were written
before the runs of music, novels, depth, how_far_back, the_paper and words. Each folder has one to
three. A word (contrasts.py) stands beside these alone; everything else in a
folder's table is exploratory. Published numbers, and those of compressors, are references.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from experiments.contrasts import Contrast
from experiments.results import Records


@dataclass(frozen=True)
class Question:
    """A primary contrast: its folder, its name there, and why it is one."""

    folder: str
    contrast: str
    text: str
    why: str
    front: bool = False
    """It is in the table of the first page."""


SEGMENTS = "memory against trained without memory"
WINDOW = "memory against trained without memory, sliding window"
HARDEST = "a window sees as far back in each segment: the strongest reading without memory"
PRIMARY = [
    Question(
        "fragmentation",
        "first byte of a segment: memory against trained without memory",
        "First byte of a segment: with memory, or without",
        "the effect that the paper introduces memory for (Section 3.1)",
        front=True,
    ),
    Question(
        "fragmentation",
        "all bytes: memory against sliding window",
        "All bytes of a segment: with memory, or by a sliding window (64 times the work)",
        "what memory saves beyond the beginnings of segments",
    ),
    Question(
        "quickstart",
        SEGMENTS,
        "Python source: with memory, or trained without",
        "equal parameters, steps and work of reading",
    ),
    Question(
        "quickstart",
        WINDOW,
        "Python source: with memory (sees 191 tokens), or trained without and read by a sliding "
        "window (sees 63; 8 times the work)",
        HARDEST,
        front=True,
    ),
    Question(
        "quickstart",
        "memory of 256 against the 128 of training",
        "Python source: twice the memory of training at evaluation",
        "the paper evaluates with longer memories than it trains with (Section 4.1)",
    ),
    Question(
        "music",
        WINDOW,
        "Bach chorales: with memory (sees 319 tokens), or trained without and read by a sliding "
        "window (sees 63; 8 times the work)",
        HARDEST,
        front=True,
    ),
    Question(
        "novels",
        "14 million tokens: memory against trained without memory, its better reading",
        "Novels, 14 million tokens: with memory (sees 127 tokens), or trained without and read by "
        "a sliding window (sees 63; 8 times the work)",
        "the largest training here; the reading is chosen on other books",
        front=True,
    ),
    Question(
        "novels",
        "from 1 to 14 million tokens: growth of that saving",
        "Novels: does what memory saves grow from 1 to 14 million tokens of training?",
        "small trainings may not show what large ones would",
    ),
    Question(
        "depth",
        "4 layers with memory against 4 without, 1.4 times the updates, sliding window",
        "enwik8's prefix: 4 layers with memory, or 4 without, 1.4 times the updates and a sliding "
        "window (8 times the work)",
        "updates that take as long, by step times that were measured before",
    ),
    Question(
        "depth",
        "4 layers with memory against 12 without, sliding window",
        "enwik8's prefix: 4 layers with memory, or 12 without and a sliding window (8 times the "
        "work)",
        "the paper's 12 layers with memory equal 64 without (Table 2)",
        front=True,
    ),
    Question(
        "tiny_shakespeare",
        SEGMENTS,
        "Tiny Shakespeare: with memory, or trained without",
        "equal parameters, steps and work of reading; the text of nanoGPT's example",
    ),
    Question(
        "how_far_back",
        "values 256 to 384 tokens ago: memory of 512 against guessing",
        "Values seen 256 to 384 tokens ago: recalled with a memory of 512, or guessed",
        "the farthest values that the longest memory holds",
        front=True,
    ),
    Question(
        "how_far_back",
        "passage after 128 tokens: seen before against another one",
        "A passage of the text after 128 other tokens: known with a memory of 128, or not",
        "as far as one layer sees, as trained",
    ),
    Question(
        "how_far_back",
        "passage after 384 tokens: memory of 512 against the 128 of training",
        "A passage after 384 other tokens: memory of 512, or the 128 of training",
        "whether a longer memory at evaluation reaches farther",
    ),
    Question(
        "the_paper",
        "recurrence against none, best length",
        "Table 6: recurrence, or none, each with its best attention length",
        "the paper's main ablation, with the best of three learning rates",
        front=True,
    ),
    Question(
        "the_paper",
        "the paper's positions against Shaw's, with recurrence, best length",
        "Table 6: the paper's positions, or Shaw's, with recurrence",
        "the paper's other contribution",
    ),
    Question(
        "the_paper",
        "recurrence against segments of 88, equal updates, best length",
        "Table 10: recurrence, or longer segments with equal memory of the device and updates",
        "a device's memory could be spent on longer segments",
    ),
    Question(
        "copying",
        "recurrence against none, best length",
        "The same as in Table 6, after four times the updates: recurrence, or none",
        "most of the spread between seeds is the step at which copying is learned",
    ),
    Question(
        "original",
        "this code against the original",
        "WikiText-2, the original code's settings to the end: this code, or the original",
        "equal by 150 steps is not equal by the result",
    ),
    Question(
        "attention_length",
        "python_source: memory 128 + segment 64 against segment 192, sliding window",
        "Python source, equal attention length and seconds: memory and segment, or one segment "
        "without memory and a sliding window",
        "elsewhere memory also sees more than the window",
        front=True,
    ),
    Question(
        "attention_length",
        "enwik8_prefix: memory 128 + segment 64 against segment 192, sliding window",
        "enwik8's prefix, equal attention length and seconds: memory and segment, or one segment "
        "without memory and a sliding window",
        "the same on a text that is not code",
        front=True,
    ),
    Question(
        "other_networks",
        "Transformer-XL against LSTM",
        "Python source, 2.5 minutes: Transformer-XL, or LSTM (not tuned)",
        "the paper's comparison (Table 1), at equal parameters and minutes",
    ),
    Question(
        "other_networks",
        "Transformer-XL against recurrent memory tokens",
        "Python source, 2.5 minutes: Transformer-XL, or recurrent memory tokens (not tuned)",
        "a memory that came after the paper's",
    ),
    Question(
        "words",
        "6 minutes: Transformer-XL against LSTM",
        "WikiText-2, 6 minutes, AdamW with tuned rates: Transformer-XL, or LSTM",
        "the paper's comparison on words, with both rates tuned",
        front=True,
    ),
    Question(
        "words",
        "30 minutes, optimizer and dropout tuned: Transformer-XL against LSTM",
        "WikiText-2, 30 minutes, optimizer and dropout tuned, too: Transformer-XL, or LSTM",
        "the order may depend on the minutes and on the optimizer",
    ),
]
"""In the order of experiments/README.md."""


def list_contrasts(name: str, records: Records) -> list[Contrast]:
    """Return the contrasts of a folder that have results."""
    found = import_module(f"experiments.{name}.figures").list_contrasts(records)
    return [contrast for contrast in found if len(contrast.effects)]


def list_primary(results: Mapping[str, Records]) -> list[tuple[Question, Contrast | None]]:
    """Return each primary contrast, and None for one without results."""
    found = {
        (name, contrast.name): contrast
        for name, records in results.items()
        for contrast in list_contrasts(name, records)
    }
    return [(each, found.get((each.folder, each.contrast))) for each in PRIMARY]
