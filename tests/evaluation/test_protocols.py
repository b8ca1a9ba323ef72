"""How a text is read when it is scored."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from txl_lightning.data.stream import IGNORED
from txl_lightning.data.tokens import Text
from txl_lightning.evaluation import ALIASES, PROTOCOLS, Protocol
from txl_lightning.evaluation.protocols import get_protocol

CONFIGS = Path(__file__).parents[2] / "configs"
OF_CONFIGS = {
    f"{group}-{stem.replace('_', '-')}": CONFIGS / group / f"{stem}.yaml"
    for group, stems in {
        "paper": [f"{corpus}_{size}" for corpus in ("enwik8", "text8", "wt103", "lm1b")
                  for size in ("base", "large")],
        "nvidia": ["wt103_base", "wt103_large"],
    }.items()
    for stem in stems
} | {"fairseq-wt103": CONFIGS / "fairseq" / "wt103_base.yaml"}  # fmt: skip
SETTINGS = {
    "data.eval_tgt_len": "tgt_len",
    "data.eval_batch_size": "batch_size",
    "data.eval_warmup_len": "warmup_len",
    "model.eval_mem_len": "mem_len",
    "model.eval_clamp_len": "clamp_len",
    "model.eval_same_length": "same_length",
}


def settings_of(config: Path) -> dict[str, str]:
    """Lengths of the test that a config's header tells of; its own, where that does not say."""
    text = config.read_text()
    data = yaml.safe_load(text)["data"]
    own = {"data.eval_tgt_len": data.get("eval_tgt_len", data["tgt_len"])}
    own["data.eval_batch_size"] = data.get("eval_batch_size", data["batch_size"])
    header = "".join(line.lstrip("#") for line in text.splitlines() if line.startswith("#"))
    command = header[header.index("txl_lightning test") :]
    own |= re.findall(r"--((?:data|model)\.\w+) (\S+)", command)
    return {SETTINGS[name]: str(value) for name, value in own.items()}


@pytest.mark.parametrize("name", OF_CONFIGS)
def test_a_published_protocol_is_the_test_of_its_config(name):
    protocol = PROTOCOLS[name]
    said = {field: str(getattr(protocol, field)) for field in SETTINGS.values()}
    unsaid = {"warmup_len": "0", "clamp_len": "None"}
    assert said == unsaid | settings_of(OF_CONFIGS[name])
    assert (protocol.rest, protocol.ext_len) == ("dropped", 0)


def test_every_published_protocol_has_a_config():
    assert PROTOCOLS.keys() - OF_CONFIGS.keys() == {"segments", "single-pass", "sliding-window"}


@pytest.mark.parametrize("name", ["paper-enwik8", "paper-wt103", "nvidia-wt103"])
def test_the_short_name_is_the_base_models(name):
    assert get_protocol(name) == PROTOCOLS[f"{name}-base"] == PROTOCOLS[ALIASES[name]]


def test_what_is_given_wins_over_the_protocol():
    given = {"tgt_len": 3, "mem_len": 0, "clamp_len": 4, "same_length": "mem_len+1"}
    given |= {"batch_size": 2, "ext_len": 1, "warmup_len": 6, "limit": 9, "rest": "scored"}
    for name in PROTOCOLS:
        protocol = get_protocol(name, **given)
        assert {field: getattr(protocol, field) for field in given} == given
        assert protocol.name == name


def test_a_window_is_as_many_tokens_before_each():
    protocol = get_protocol("sliding-window", window=100, batch_size=3)
    lengths = (protocol.tgt_len, protocol.mem_len, protocol.ext_len, protocol.warmup_len)
    assert lengths == (1, 0, 99, 100)
    assert (protocol.batch_size, protocol.limit) == (3, 1000)


@pytest.mark.parametrize(("n_token", "limit", "scored"), [(103, None, 102), (103, 50, 50)])
@pytest.mark.parametrize("batch_size", [1, 4, 10])
def test_what_is_left_over_is_scored_or_dropped(n_token, limit, scored, batch_size):
    text = Text(np.arange(n_token))
    how = {"tgt_len": 8, "batch_size": batch_size, "limit": limit, "warmup_len": 5}
    found = {}
    for rest in ("scored", "dropped"):
        stream = Protocol(rest=rest, **how).stream(text)
        segments = [stream.segment(index) for index in range(len(stream))]
        found[rest] = [t for s in segments for t in s.targets_BL[s.targets_BL != IGNORED].tolist()]
    n_read = (scored + 1) // batch_size * batch_size
    assert sorted(found["scored"]) == list(range(1, scored + 1))
    assert sorted(found["dropped"]) == list(range(1, n_read))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"protocol": "paper"}, "protocol: invalid paper; expected one of segments, "),
        ({"mem_len": -1}, "mem_len: invalid -1; expected at least 0"),
        ({"tgt_len": 0}, "tgt_len: invalid 0; expected at least 1"),
        ({"limit": 0}, "limit: invalid 0; expected at least 1"),
        ({"window": 0}, "window: invalid 0; expected at least 1"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        get_protocol(**given)
