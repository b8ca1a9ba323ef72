"""Dashboards are built offline from logged metrics, and sent to the chosen server."""

import json
import os
import re
import subprocess
import sys
import threading
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from operator import getitem
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[1]
QUESTIONS = ["Is it learning?", "Is it fast?", "Does memory help?", "Which run is best?"]
NOWHERE = {"WANDB_BASE_URL": "http://127.0.0.1:9"}
KEY = {"WANDB_API_KEY": "c0ffee" * 6 + "beef"}
LEAST = "val/bits_per_byte.min"
NAMING = ("xAxis", "yAxis", "metrics", "accessor", "targetKey", "mediaKeys", "tableKey", "val")


@pytest.fixture(scope="module")
def push(tmp_path_factory):
    """Run the script in an empty folder, without any other W&B key."""
    folder = tmp_path_factory.mktemp("home")

    def run(*options: str, **environment: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "experiments.dashboards.push", "--entity=me", *options]
        known = {name: value for name, value in os.environ.items() if "WANDB" not in name}
        paths = os.pathsep.join([environment.pop("PYTHONPATH", ""), str(REPOSITORY)])
        known |= {"HOME": str(folder), "PYTHONPATH": paths} | environment
        how = {"capture_output": True, "text": True, "timeout": 120}
        return subprocess.run(command, env=known, cwd=folder, check=False, **how)

    return run


@pytest.fixture(scope="module")
def boards(push) -> tuple[dict[str, list], dict[str, list], dict]:
    """The panels under each heading of the workspace and of the report, and the request."""
    done = push("--json", **NOWHERE)
    assert (done.returncode, done.stderr) == (0, "")
    sent = json.loads(done.stdout)
    sections = sent["workspace"]["spec"]["section"]["panelBankConfig"]["sections"]
    blocks = sent["report"]["spec"]["blocks"]
    titles = [block["children"][0]["text"] for block in blocks if block["type"] == "heading"]
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    panels = [grid["panelBankSectionConfig"]["panels"] for grid in grids]
    workspace = {section["name"]: section["panels"] for section in sections}
    return workspace, dict(zip(titles, panels, strict=True)), sent


def metric_names(node, key: str = "") -> set[str]:
    """Return the names of all metrics in a panel."""
    if isinstance(node, list):
        return set().union(*(metric_names(each, key) for each in node))
    if not isinstance(node, dict):
        return {node} if key in NAMING else set()
    # A query's argument is beside its name.
    inside = {node["name"]: node["value"]} if {"name", "value"} <= node.keys() else node
    return set().union(*(metric_names(each, name) for name, each in inside.items()))


def setting(config: dict, name: str):
    """Return a setting by its dotted name, as W&B does."""
    first, rest = name.removeprefix("config:").split(".value.")
    return reduce(getitem, rest.split("."), config[first])


def test_workspace_and_report_have_the_four_questions_and_panels_that_do_not_overlap(boards):
    workspace, report, _ = boards
    assert list(workspace) == list(report) == QUESTIONS
    for inside, panels in zip(workspace.values(), report.values(), strict=True):
        assert len(panels) >= 4
        assert [panel["viewType"] for panel in inside] == [panel["viewType"] for panel in panels]
        for one, other in combinations([panel["layout"] for panel in panels], 2):
            pairs = [(one, other, *axis) for axis in ("xw", "yh")]
            pairs += [(other, one, *axis) for axis in ("xw", "yh")]
            assert any(a[at] + a[size] <= b[at] for a, b, at, size in pairs)


def test_panels_name_only_logged_metrics_and_compare_their_minima(boards, offline_run):
    _, run = offline_run
    logged = {key.removesuffix("/_type") for row in run.rows for key in row}
    panels = [panel for shown in boards[:2] for inside in shown.values() for panel in inside]
    columns = boards[2]["workspace"]["spec"]["section"]["runSets"][0]["runFeed"]["columnOrder"]
    assert columns[:2] == ["run:displayName", f"summary:{LEAST}"]
    named = metric_names(panels) | {*columns[2:]}
    settings = {name for name in named if name.startswith("config:")}
    assert {*columns[2:]} <= settings
    assert all(setting(run.config, name) is not None for name in settings)
    keys = {name.removeprefix("summary:").removesuffix(".min") for name in named - settings}
    assert keys - logged == set()
    patterns = {panel["config"].get("metricRegex") for panel in panels} - {None}
    assert len(patterns) == 2
    for pattern in patterns:
        assert any(re.search(pattern, name) for name in logged)
    assert run.summary[LEAST.removesuffix(".min")]["min"] > 0
    for shown in boards[:2]:
        compared = metric_names(shown["Which run is best?"])
        assert {name.removeprefix("summary:") for name in compared if "val/" in name} == {LEAST}


def test_nats_by_position_are_plotted_as_in_wandb(boards, offline_run):
    own = offline_run[1].config["_wandb/visualize/val/nats_by_position"]["panel_config"]
    for shown in boards[:2]:
        [panel] = [p["config"] for p in shown["Does memory help?"] if p["viewType"] == "Vega2"]
        for same in ("panelDefId", "stringSettings", "transform"):
            assert panel[same] == own[same]
        chosen = {name: field for name, field in own["fieldSettings"].items() if field}
        assert panel["fieldSettings"] == chosen
        fields = [each["userQuery"]["queryFields"][0]["fields"] for each in (panel, own)]
        assert fields[0] == fields[1]


NO_PACKAGE = "raise ModuleNotFoundError(name=__name__)"


@pytest.mark.parametrize(
    ("options", "environment", "package", "message"),
    [
        ([], {}, None, "error: the report was not saved: "),
        ([], NOWHERE | KEY, None, "error: the report was not saved: "),
        (["--json"], {}, NO_PACKAGE, "pip install 'txl-lightning[dashboards]'"),
    ],
    ids=["no key", "no server", "no package"],
)
def test_a_failure_is_one_line(push, tmp_path, options, environment, package, message):
    if package:
        (tmp_path / "wandb_workspaces.py").write_text(package)
        environment = {"PYTHONPATH": str(tmp_path)}
    done = push(*options, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(message) or line.endswith(message)


class Server(BaseHTTPRequestHandler):
    """The part of W&B's server that saving needs; it stores the requests."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"data": self.answer(request)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def answer(self, request: dict) -> dict:
        if "upsertView" in request["query"]:
            data = request["variables"]
            self.server.kept.append(data)
            project = {"name": data["projectName"], "entityName": data["entityName"]}
            view = {"id": "abc", "project": project}
            view |= {name: data[name] for name in ("name", "displayName", "description", "spec")}
            return {"upsertView": {"view": view, "inserted": True}}
        if "GetProjects" in request["query"]:
            return {"models": {"pageInfo": {"hasNextPage": False, "endCursor": None}, "edges": []}}
        return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}"}}

    def log_message(self, *_) -> None:
        pass


def test_one_command_saves_workspace_and_report(push):
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.kept = []
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}"
        done = push("--project=ours", WANDB_BASE_URL=address, **KEY)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    report, workspace = done.stdout.splitlines()
    assert report.startswith(f"report: {address}/me/ours/reports/")
    assert workspace.startswith(f"workspace: {address}/me/ours?nw=")
    assert [kept["type"] for kept in server.kept] == ["runs", "project-view"]
    assert all(all(question in kept["spec"] for question in QUESTIONS) for kept in server.kept)
