"""The sizes in docs/networks.md are those of the networks."""

import json
import re

import pytest
import torch
import yaml

from experiments.results import format_table, load_records, select
from experiments.state_bytes import figures
from experiments.state_bytes.run import NETS
from txl_lightning.imports import NETWORKS, OWN
from txl_lightning.model.config import make_config


@pytest.fixture
def rows(repository):
    """Return the cells of the table of sizes."""
    page = (repository / "docs" / "networks.md").read_text()
    [table] = re.findall("<!-- sizes -->\n(.*?)<!-- end of sizes -->", page, re.DOTALL)
    lines = table.strip().splitlines()[2:]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_page_has_the_parameters_and_the_bytes_of_memory_of_each_recipe(rows, repository):
    assert {name for name, *_ in rows} == {f"networks/{net}" for net in NETS}
    for name, network, parameters, n_byte, *_ in rows:
        recipe = yaml.safe_load((repository / "configs" / f"{name}.yaml").read_text())
        named = {"n_token": 4096, "class_path": NETWORKS.get(network)}
        net = make_config(recipe["model"]["net"] | named).build()
        sizes = [parameter.numel() for parameter in net.parameters()]
        tensors = net.empty_memory(1).tensors().values()
        actual = f"{sum(sizes):,}", f"{sum(each.nbytes for each in tensors):,}"
        assert actual == (parameters, n_byte), name


def test_page_has_the_recipes_of_all_networks(rows):
    # Models of transformers have a page of their own.
    networks = {network for _, network, *_ in rows}
    assert networks == {*OWN} - {"HuggingFace"}


def test_page_has_the_measured_times(rows, repository):
    path = repository / "experiments" / "speed" / "results" / "2026-11-28-networks.json"
    measured = json.loads(path.read_text())["milliseconds"]
    for name, *_, fastest, middle in rows:
        times = measured[name.removeprefix("networks/")]
        assert (fastest, middle) == (f"{times['fastest']:.0f}", f"{times['median']:.0f}")


def test_page_has_the_measured_bits_of_each_rate(repository):
    page = (repository / "docs" / "networks.md").read_text()
    records = load_records(repository / "experiments" / "state_bytes" / "results.json")
    [table] = re.findall("<!-- results.*?\n(.*?)<!-- end of results -->", page, re.DOTALL)
    assert table == format_table(figures.list_rates(records))


@pytest.mark.parametrize("net", NETS)
def test_a_recipe_has_the_best_optimizer_and_rate_that_were_tried(net, repository):
    records = load_records(repository / "experiments" / "state_bytes" / "results.json")
    path = repository / "configs" / "networks" / f"{net}.yaml"
    optim = yaml.safe_load(path.read_text())["model"]["optim"]
    if tried := select(records, kind="rate", net=net):
        best = min(tried, key=lambda record: record["nats"])
        assert (optim["name"], optim["lr"]) == (best["optimizer"], best["rate"])
    else:
        assert (optim["name"], optim["lr"]) == ("muon", 0.006)


def test_networks_of_the_page_have_about_equal_parameters(rows):
    sizes = torch.tensor([float(parameters.replace(",", "")) for _, _, parameters, *_ in rows])
    assert sizes.max() / sizes.min() < 1.01


def test_page_compares_an_lstm_with_that_of_torch():
    """The same weights give the outputs and the state of torch.nn.LSTM."""
    net = make_config({"class_path": NETWORKS["LSTM"], "n_layer": 2, "d_model": 8}).build().eval()
    other = torch.nn.LSTM(8, 8, 2, batch_first=True)
    weights = {}
    for n, layer in enumerate(net.layers):
        for theirs, ours in (("ih", layer.of_inputs), ("hh", layer.of_states)):
            weights |= {f"weight_{theirs}_l{n}": ours.weight, f"bias_{theirs}_l{n}": ours.bias}
    other.load_state_dict(weights)
    tokens = torch.randint(256, (3, 9))
    with torch.no_grad():
        h_BLD, memory = net.hidden(tokens)
        expected_BLD, (last, _) = other(net.embedding(tokens))
    torch.testing.assert_close(h_BLD, expected_BLD)
    torch.testing.assert_close(memory.state_N[1]["h_BD"], last[1])
