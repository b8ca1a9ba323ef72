"""The questions that people ask of their runs, each with the panels that answer it.

Metrics have the names that runs log them by. Bits are those of any unit (byte, character, word)
where a run is looked at by itself, and bits per byte where runs are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass

import wandb_workspaces.reports.v2 as wr

TOKENS = "tokens"
TRAIN_BITS, VAL_BITS = "^train/bits_per_", "^val/bits_per_"
LEAST = "val/bits_per_byte.min"
"""The least of all validations, as a run's summary has it."""

SETTINGS = ("model.optim.lr", "model.net.mem_len", "data.tgt_len")
"""Settings that are varied most often."""


@dataclass(frozen=True)
class Question:
    """A question, how its answer is read, and the panels that show it."""

    title: str
    reading: str
    panels: Callable[[], list]


def over_tokens(title: str, *metrics: str, **how) -> wr.LinePlot:
    """Lines over what was read."""
    return wr.LinePlot(title=title, x=TOKENS, y=list(metrics), **how)


def learning_panels() -> list:
    """Losses, what drives them, and what the model writes."""
    return [
        over_tokens("bits, validation", metric_regex=VAL_BITS),
        over_tokens("bits, training", metric_regex=TRAIN_BITS),
        over_tokens("nats of a token", "train/nats", "val/nats"),
        over_tokens("perplexity, validation", "val/perplexity", log_y=True),
        over_tokens("learning rate", "train/lr"),
        over_tokens("gradient norm", "train/grad_norm", log_y=True),
        wr.MediaBrowser(title="learning curve", media_keys=["curve"]),
        wr.WeavePanelSummaryTable(table_name="val/samples"),
    ]


def speed_panels() -> list:
    """Rates, what they need, and what an hour is worth."""
    hours = "RelativeTime(Process)"
    return [
        over_tokens("tokens a second", "train/tokens_per_second"),
        over_tokens("model FLOP a second", "train/model_flops_per_second"),
        over_tokens("peak memory, bytes", "train/peak_memory_bytes"),
        wr.LinePlot(title="bits, validation, over time", x=hours, metric_regex=VAL_BITS),
    ]


def memory_panels() -> list:
    """Memory gain, loss by position, attention distance, and the memory's size."""
    return [
        over_tokens("memory gain, nats of a token", "val/memory_gain"),
        nats_by_position(),
        wr.MediaBrowser(title="how far back attention goes", media_keys=["attention"]),
        over_tokens("states remembered in a row", "train/mem_filled"),
        over_tokens("bytes remembered", "train/memory_bytes"),
        wr.ScatterPlot(
            title="least bits per byte by mem_len",
            x=wr.Config("model.net.mem_len"),
            y=wr.SummaryMetric(LEAST),
        ),
    ]


def nats_by_position() -> wr.CustomChart:
    """The chart that runs log, drawn of several runs at once."""
    # All fields that W&B's own query has: by itself, the package writes id and name otherwise.
    fields = {"id": {}, "name": {}, "_defaultColorIndex": {}}
    return wr.CustomChart(
        query=fields | {"summaryTable": {"tableKey": "val/nats_by_position_table"}},
        chart_name="wandb/line/v0",
        chart_fields={"x": "position", "y": "nats"},
        chart_strings={"title": "nats by position in the segment"},
    )


def comparison_panels() -> list:
    """Runs in a row, and what makes them differ."""
    settings = [wr.ParallelCoordinatesPlotColumn(wr.Config(key)) for key in SETTINGS]
    bits = wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(LEAST))
    return [
        wr.BarPlot(title="least bits per byte, validation", metrics=[LEAST], max_bars_to_show=50),
        wr.ParallelCoordinatesPlot(title="settings and bits", columns=[*settings, bits]),
        wr.ParameterImportancePlot(with_respect_to=LEAST),
        wr.RunComparer(diff_only="split"),
    ]


QUESTIONS = (
    Question(
        "Is it learning?",
        "Bits fall over tokens in validation too. Where only training goes on falling, the run is "
        "too long or its network too large; a gradient norm that leaps announces a loss that will.",
        learning_panels,
    ),
    Question(
        "Is it fast?",
        "Rates are even, and model FLOP a second near what the device can do. Of two runs, the "
        "better one is lower after the same time.",
        speed_panels,
    ),
    Question(
        "Does memory help?",
        "What memory saves is above 0: so much more the same tokens cost where nothing is "
        "remembered. With a memory, the first tokens of a segment cost hardly more than the last; "
        "without, nats fall over the segment. Attention goes back as far as memory is of use.",
        memory_panels,
    ),
    Question(
        "Which run is best?",
        "The shortest bar, of runs on the same text. Bits per byte compare vocabularies; nats and "
        "perplexity do not.",
        comparison_panels,
    ),
)
