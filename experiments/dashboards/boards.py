"""A workspace and a report of the same questions, each with the panels that answer it.

Metrics have the names under which runs log them. A single run is shown in bits of its own unit
(byte, character, word), several runs in bits per byte.
"""

from copy import deepcopy
from typing import Any, NamedTuple

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

TITLE = "Transformer-XL: four questions"
COLUMNS = 3
TOKENS = "tokens"
LEAST = "val/bits_per_byte.min"  # the minimum over all validations, which a run's summary has
SETTINGS = ("model.optim.lr", "model.net.mem_len", "data.tgt_len")
"""Settings that are varied most often."""
Panels = list[Any]


class Question(NamedTuple):
    """A question, how its answer is read, and the panels that show it."""

    title: str
    reading: str
    panels: Panels


def plot(title: str, *metrics: str, **options: Any) -> wr.LinePlot:
    """Plot metrics over training tokens."""
    return wr.LinePlot(title=title, x=TOKENS, y=list(metrics), **options)


def plot_nats_by_position() -> wr.CustomChart:
    """Plot the table that runs log, of several runs in one chart."""
    # All fields that W&B's own query has: by default, the package writes id and name otherwise.
    fields = {"id": {}, "name": {}, "_defaultColorIndex": {}}
    return wr.CustomChart(
        query=fields | {"summaryTable": {"tableKey": "val/nats_by_position_table"}},
        chart_name="wandb/line/v0",
        chart_fields={"x": "position", "y": "nats"},
        chart_strings={"title": "nats by position in the segment"},
    )


# Copied where they are used: a workspace and a report change the layout of their panels.
QUESTIONS = [
    Question(
        "Is it learning?",
        "Bits fall over tokens in validation too. If only the training loss goes on falling, "
        "the run is too long or its network too large; a jump of the gradient norm comes "
        "before a jump of the loss.",
        [
            plot("bits, validation", metric_regex="^val/bits_per_"),
            plot("bits, training", metric_regex="^train/bits_per_"),
            plot("nats per token", "train/nats", "val/nats"),
            plot("perplexity, validation", "val/perplexity", log_y=True),
            plot("learning rate", "train/lr"),
            plot("gradient norm", "train/grad_norm", log_y=True),
            wr.MediaBrowser(title="learning curve", media_keys=["curve"]),
            wr.WeavePanelSummaryTable(table_name="val/samples"),
        ],
    ),
    Question(
        "Is it fast?",
        "Rates are even, and the model's FLOP per second near what the device can do. Of two "
        "runs, the better one is lower after the same time.",
        [
            plot("tokens per second", "train/tokens_per_second"),
            plot("the model's FLOP per second", "train/model_flops_per_second"),
            plot("peak memory, bytes", "train/peak_memory_bytes"),
            wr.LinePlot(
                title="bits, validation, over time",
                x="RelativeTime(Process)",
                metric_regex="^val/bits_per_",
            ),
        ],
    ),
    Question(
        "Does memory help?",
        "The gain is above 0: tokens cost so much more without the memory. With a memory, the "
        "first tokens of a segment cost hardly more than the last; without, nats fall over "
        "the segment. Attention goes back as far as memory is of use.",
        [
            plot("nats per token without memory, less with it", "val/memory_gain"),
            plot_nats_by_position(),
            wr.MediaBrowser(title="attention distance", media_keys=["attention"]),
            plot("remembered states per row", "train/mem_filled"),
            plot("bytes of memory", "train/memory_bytes"),
            wr.ScatterPlot(
                title="least bits per byte by mem_len",
                x=wr.Config("model.net.mem_len"),
                y=wr.SummaryMetric(LEAST),
            ),
        ],
    ),
    Question(
        "Which run is best?",
        "The shortest bar, of runs on the same text. Bits per byte compare vocabularies; nats "
        "and perplexity do not.",
        [
            wr.BarPlot(
                title="least bits per byte, validation", metrics=[LEAST], max_bars_to_show=50
            ),
            wr.ParallelCoordinatesPlot(
                title="settings and bits",
                columns=[
                    *(wr.ParallelCoordinatesPlotColumn(wr.Config(key)) for key in SETTINGS),
                    wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(LEAST)),
                ],
            ),
            wr.ParameterImportancePlot(with_respect_to=LEAST),
            wr.RunComparer(diff_only="split"),
        ],
    ),
]


def build_workspace(entity: str, project: str) -> ws.Workspace:
    """Return a workspace: a section per question, and varied settings beside each run."""
    sections = []
    for title, _, panels in deepcopy(QUESTIONS):
        rows = -(-len(panels) // COLUMNS)
        layout = ws.SectionLayoutSettings(columns=COLUMNS, rows=rows)
        section = {"name": title, "panels": panels, "layout_settings": layout}
        sections.append(ws.Section(**section, is_open=True))
    # W&B knows a setting by the first part of its name.
    settings = ("config:{}.value.{}".format(*key.split(".", maxsplit=1)) for key in SETTINGS)
    return ws.Workspace(
        entity=entity,
        project=project,
        name=TITLE,
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis=TOKENS),
        runset_settings=ws.RunsetSettings(pinned_columns=[f"summary:{LEAST}", *settings]),
    )


def build_report(entity: str, project: str) -> wr.Report:
    """Return a report: each question, how its answer is read, and its panels, best runs first."""
    blocks = []
    for title, reading, panels in deepcopy(QUESTIONS):
        # Without a project: W&B is asked at once about the runs of a named one.
        runs = wr.Runset(name="runs", order=[wr.OrderBy(wr.SummaryMetric(LEAST), ascending=True)])
        grid = wr.PanelGrid(runsets=[runs], panels=panels)
        blocks += [wr.H2(title), wr.P(reading), grid]
    return wr.Report(entity=entity, project=project, title=TITLE, blocks=blocks, width="fluid")
