"""The size of a network follows from the text, the device and the minutes."""

import json
from itertools import pairwise, product
from types import SimpleNamespace

import pytest
import torch

from experiments.gpu import operations
from experiments.results import load_records
from experiments.speed.cases import Case
from txl_lightning.data.datamodule import StreamConfig
from txl_lightning.training import network_size, own_text
from txl_lightning.training.network_size import (
    CPU,
    LADDER,
    Device,
    Network,
    Text,
    format_millions,
)
from txl_lightning.training.options import make_parser
from txl_lightning.training.settings import Resolved, parse, read_given


def make_card(name, capability, n_multiprocessor, gigabytes):
    major, minor = capability
    memory = gigabytes * 2**30
    return network_size.describe_card(
        SimpleNamespace(
            name=name, major=major, minor=minor, multi_processor_count=n_multiprocessor,
            total_memory=memory,
        )
    )  # fmt: skip


H200 = make_card("NVIDIA H200", (9, 0), 132, 139)
RTX_4090 = make_card("NVIDIA GeForce RTX 4090", (8, 9), 128, 24)
T4 = make_card("Tesla T4", (7, 5), 40, 15)
SMALL_CARD = H200._replace(memory=4 * 2**30)
DEVICES = (CPU, H200, RTX_4090, T4, SMALL_CARD)
MINUTES = (0.1, 5, 12.5, 30, 120, 480, 3000)
MEGABYTES = (0.1, 10, 70, 200, 1000, 10_000)


def count_text(megabytes):
    return Text(megabytes * 1e6 / 3.4, 4096)


def choose(device, megabytes, minutes):
    return network_size.choose_network(count_text(megabytes), device, minutes)


@pytest.mark.parametrize(
    ("device", "megabytes", "minutes", "width"),
    [
        (CPU, 70, 30, 128),
        (CPU, 200, 5, 128),
        (CPU, 200, 480, 256),
        (H200, 1, 480, 128),
        (H200, 70, 5, 256),
        (H200, 200, 30, 384),
        (H200, 1000, 30, 384),
        (H200, 1000, 120, 512),
        (H200, 1000, 480, 768),
        (H200, 10_000, 480, 1024),
        (RTX_4090, 10_000, 120, 512),
        (RTX_4090, 10_000, 3000, 512),
        (SMALL_CARD, 10_000, 3000, 384),
        (T4, 10_000, 3000, 128),
    ],
)
def test_network_has_the_size_that_text_device_and_minutes_allow(device, megabytes, minutes, width):
    assert choose(device, megabytes, minutes).d_model == width


@pytest.mark.parametrize("device", DEVICES)
def test_more_minutes_or_more_text_never_give_a_smaller_network(device):
    for megabytes in MEGABYTES:
        places = [LADDER.index(choose(device, megabytes, minutes)) for minutes in MINUTES]
        assert places == sorted(places)
    for minutes in MINUTES:
        places = [LADDER.index(choose(device, megabytes, minutes)) for megabytes in MEGABYTES]
        assert places == sorted(places)


@pytest.mark.parametrize("factor", [1.5, 10])
@pytest.mark.parametrize("field", ["rate", "memory"])
def test_a_better_card_never_has_a_smaller_network(field, factor):
    better = RTX_4090._replace(**{field: factor * getattr(RTX_4090, field)})
    for megabytes, minutes in product(MEGABYTES, MINUTES):
        before = choose(RTX_4090, megabytes, minutes)
        assert LADDER.index(choose(better, megabytes, minutes)) >= LADDER.index(before)


@pytest.mark.parametrize("gigabytes", [1, 4, 8, 24, 80])
def test_network_fits_into_the_memory_of_its_card(gigabytes):
    card = H200._replace(memory=gigabytes * 2**30)
    for megabytes, minutes in product(MEGABYTES, MINUTES):
        network = choose(card, megabytes, minutes)
        assert network_size.reckon_memory(network, 4096) < card.memory


def test_what_keeps_a_larger_network_away_is_the_first_that_is_too_small():
    larger = LADDER[2]
    for text, device, minutes, limit in [
        (count_text(1), H200, 480, "8 layers of 384 from 30 million tokens of text on"),
        (count_text(200), H200, 5, "8 layers of 384 from --plan.minutes 13 on"),
        (
            count_text(200),
            H200._replace(memory=2**30),
            480,
            "8 layers of 384 from 3 GiB of memory on",
        ),
        (count_text(200), T4, 480, "no larger network, because the speed of Tesla T4 is unknown"),
        (count_text(200), H200, 13, None),
    ]:
        assert network_size.find_limit(larger, text, device, minutes) == limit


def test_each_network_of_the_ladder_is_larger_and_needs_more():
    for small, large in pairwise(LADDER):
        for measure in (
            network_size.count_parameters,
            network_size.count_operations,
            network_size.reckon_memory,
        ):
            assert measure(small, 4096) < measure(large, 4096)
        speeds = [network_size.reckon_speed(each, 4096, CPU) for each in (small, large)]
        assert speeds[0] > speeds[1]


@pytest.mark.parametrize("network", LADDER)
def test_operations_and_parameters_are_those_of_the_network(network):
    sizes = {"n_layer": network.n_layer, "d_model": network.d_model, "n_head": network.n_head}
    case = Case("", sizes | {"n_token": 4096}, network.rows, network.tgt_len, network.mem_len)
    each = operations.count_operations(case) / case.tokens
    assert network_size.count_operations(network, 4096) == pytest.approx(each)
    with torch.device("meta"):
        net = case.config.build()
    n_parameter = sum(weight.numel() for weight in net.parameters())
    assert network_size.count_parameters(network, 4096) == pytest.approx(n_parameter, rel=0.02)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("paper/enwik8_base", Network(12, 512, 8, 22, 512, 512)),
        ("paper/enwik8_large", Network(24, 1024, 8, 64, 768, 768)),
    ],
)
def test_speed_and_memory_are_near_those_that_were_measured_on_a_card(repository, name, network):
    slowest, fastest = operations.SPEEDS[name]
    # The inner width of enwik8_large is 3 D.
    assert 0.7 * slowest < network_size.reckon_speed(network, 256, H200) <= fastest
    results = json.loads((repository / "experiments/gpu/results/NVIDIA_H200-6.json").read_text())
    rows = [each for each in results["parts"]["speed"]["found"] if each["config"] == name]
    [measured] = [each["peak_memory_bytes"] for each in rows if each["kernel"] == "sdpa"]
    assert network_size.reckon_memory(network, 256) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("width", [128, 192])
def test_speed_of_a_cpu_is_that_of_the_measured_recipes(repository, width):
    records = load_records(repository / "tests/training/recipes.json").values()
    kind = f"70 MB, 4096{' 192' * (width == 192)} restarted"
    runs = [run for run in records if run["kind"] == kind]
    longest = max(runs, key=lambda run: run["minutes"])
    network = LADDER[0]._replace(d_model=width)
    measured = longest["steps"] * network.step_tokens / longest["minutes"] / 60
    assert network_size.reckon_speed(network, 4096, CPU) == pytest.approx(measured, rel=0.15)


def test_peaks_of_cards_are_those_that_are_published():
    for card, peak in ((H200, 989e12), (RTX_4090, 165e12)):
        assert card.rate == pytest.approx(network_size.CARD_SHARE * peak)
    assert T4.rate is None


@pytest.mark.parametrize("network", LADDER[1:])
def test_a_wider_network_has_smaller_weights_and_rates(network):
    recipe = own_text.load_shared()
    found = own_text.scale_settings(recipe, network)
    wider = network.d_model / LADDER[0].d_model
    assert found["model.optim.muon_lr"] * wider**0.5 == pytest.approx(12e-3)
    assert found["model.optim.lr"] * wider == pytest.approx(6e-3)
    assert found["model.net.init_std"] * wider**0.5 == pytest.approx(0.05)
    assert found["data.restart_len"] == 8 * network.tgt_len


def test_the_smallest_network_of_the_ladder_is_the_quick_starts():
    recipe = own_text.load_shared()
    for name in ("n_layer", "d_model", "n_head", "mem_len"):
        assert recipe[f"model.net.{name}"] == getattr(LADDER[0], name)
    default = StreamConfig()
    assert (LADDER[0].rows, LADDER[0].tgt_len) == (default.batch_size, default.tgt_len)


def test_a_text_that_is_read_more_often_than_its_tokens_count_has_dropout():
    text = count_text(200)
    for minutes, dropout in ((5, 0.0), (30, 0.1)):
        recipe = own_text.choose_recipe(2e8, text, H200, minutes)
        assert recipe["model.net.dropout"] == dropout


@pytest.fixture
def fit_on(monkeypatch, tmp_path, capsys):
    """Return the settings of fit on a device, for bytes of which a file has none, and the lines."""

    def resolve(device, megabytes, *words):
        monkeypatch.setattr(own_text, "find_device", lambda _: device)
        path = tmp_path / "large.txt"
        with path.open("wb") as file:
            file.truncate(int(megabytes * 1e6))
        given = read_given([f"--data.path={path}", "--data.vocab=bytes", *words])
        recipe = own_text.find_recipe(given)
        settings = parse(make_parser("fit"), Resolved(given, [recipe]))
        return settings, own_text.describe_recipe(recipe, settings).splitlines()

    return resolve


def test_a_text_on_a_card_has_a_network_of_the_ladder_with_its_rows(fit_on):
    settings, (line, why) = fit_on(H200, 2000)
    net = settings.model.net
    assert (net.n_layer, net.d_model, net.mem_len) == (6, 256, 256)
    assert (settings.data.batch_size, settings.data.tgt_len) == (64, 128)
    assert line.startswith("recipe for a text of 2000.0 MB on NVIDIA H200: bytes; 6 layers of 256,")
    assert why == (
        "why: NVIDIA H200, 5 min, about 2,000 million tokens of text: 5.2 million parameters "
        "read 3.3 % of it (--plan.minutes 153 for one pass) at about 270,000 tokens/s (reckoned, "
        "not measured on this card); 8 layers of 384 from --plan.minutes 11 on"
    )


def test_sizes_that_are_given_count_and_leave_the_quick_starts_others(fit_on):
    settings, (_, why) = fit_on(H200, 2000, "--plan.minutes=600", "--model.net.d_model=96")
    net = settings.model.net
    assert (net.n_layer, net.n_head, net.d_model, settings.data.batch_size) == (4, 4, 96, 16)
    assert "0.5 million parameters" in why


@pytest.mark.parametrize(
    ("key", "value"),
    [("data.batch_size", 8), ("data.tgt_len", 32), ("model.net.mem_len", 64)],
)
def test_a_length_that_is_given_counts_in_a_network_of_the_ladder(fit_on, key, value):
    settings, _ = fit_on(H200, 2000, f"--{key}={value}")
    assert (settings[key], settings.model.net.d_model) == (value, 256)


def test_a_run_in_steps_has_the_small_network_and_no_reasons(fit_on):
    settings, lines = fit_on(H200, 2000, "--trainer.max_steps=9")
    assert (settings.model.net.d_model, len(lines)) == (128, 1)


def test_a_device_of_unknown_speed_has_the_small_network_which_the_line_says(fit_on):
    settings, (_, why) = fit_on(Device("another device", None, ""), 2000, "--plan.minutes=600")
    assert settings.model.net.d_model == own_text.WIDE
    assert why.endswith("no larger network, because the speed of another device is unknown")


@pytest.mark.parametrize(
    ("number", "text"),
    [(36_123, "36,000"), (100_000, "0.1 million"), (1.25e6, "1.2 million"), (3e7, "30 million")],
)
def test_numbers_below_a_tenth_of_a_million_are_said_in_full(number, text):
    assert format_millions(number) == text
