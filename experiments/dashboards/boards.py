"""A workspace and a report from the same questions; built without a network."""

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from panels import LEAST, QUESTIONS, SETTINGS, TOKENS, Question

TITLE = "Transformer-XL: four questions"
COLUMNS = 3


def workspace(entity: str, project: str) -> ws.Workspace:
    """To watch runs with: a section for each question, and what is varied beside each run."""
    varied = [f"config:{first}.value.{rest}" for first, rest in map(split_setting, SETTINGS)]
    return ws.Workspace(
        entity=entity,
        project=project,
        name=TITLE,
        sections=[section(question) for question in QUESTIONS],
        settings=ws.WorkspaceSettings(x_axis=TOKENS),
        runset_settings=ws.RunsetSettings(pinned_columns=[f"summary:{LEAST}", *varied]),
    )


def split_setting(key: str) -> list[str]:
    """A setting's first name, which is all that W&B knows of it, and the rest."""
    return key.split(".", maxsplit=1)


def section(question: Question) -> ws.Section:
    """All panels of a question, on one page."""
    panels = question.panels()
    layout = ws.SectionLayoutSettings(columns=COLUMNS, rows=-(-len(panels) // COLUMNS))
    return ws.Section(name=question.title, panels=panels, is_open=True, layout_settings=layout)


def report(entity: str, project: str) -> wr.Report:
    """To show others: each question, how its answer is read, and its panels."""
    blocks = [block for question in QUESTIONS for block in question_blocks(question)]
    return wr.Report(entity=entity, project=project, title=TITLE, blocks=blocks, width="fluid")


def question_blocks(question: Question) -> list:
    """The blocks of a question, with its best runs first."""
    # A set that names no project is of the report's own; of a named one W&B is asked at once.
    runs = wr.Runset(name="runs", order=[wr.OrderBy(wr.SummaryMetric(LEAST), ascending=True)])
    grid = wr.PanelGrid(runsets=[runs], panels=question.panels())
    return [wr.H2(question.title), wr.P(question.reading), grid]
