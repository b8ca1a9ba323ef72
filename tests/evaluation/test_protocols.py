"""Protocols of scoring a text."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from txl_lightning.data.stream import IGNORED
from txl_lightning.data.tokens import TextTokens
from txl_lightning.evaluation.protocols import PROTOCOLS, Protocol, get_protocol

CONFIGS = Path(__file__).parents[2] / "configs"
CORPORA = {"paper": ("enwik8", "text8", "wt103", "lm1b"), "nvidia": ("wt103",)}
CONFIG_OF = {
    f"{group}-{corpus}-{size}": CONFIGS / group / f"{corpus}_{size}.yaml"
    for group in CORPORA
    for corpus in CORPORA[group]
    for size in ("base", "large")
}
CONFIG_OF |= {"fairseq-wt103": CONFIGS / "fairseq" / "wt103_base.yaml"}
CONFIG_OF |= {"paper-ptb": CONFIGS / "paper" / "ptb.yaml"}
SETTINGS = {f"data.eval_{name}": name for name in ("tgt_len", "batch_size", "warmup_len")}
SETTINGS |= {f"model.eval_{name}": name for name in ("mem_len", "clamp_len", "same_length")}


def read_test_settings(config: Path) -> dict[str, str]:
    """Return the lengths of the test command in a config's header, or else the config's own."""
    text = config.read_text()
    data = yaml.safe_load(text)["data"]
    own = {"data.eval_tgt_len": data.get("eval_tgt_len", data["tgt_len"])}
    own["data.eval_batch_size"] = data.get("eval_batch_size", data["batch_size"])
    header = "".join(line.lstrip("#") for line in text.splitlines() if line.startswith("#"))
    command = header[header.index("txl-lightning test") :]
    own |= re.findall(r"--((?:data|model)\.\w+) (\S+)", command)
    return {SETTINGS[name]: str(value) for name, value in own.items()}


def test_published_protocols_are_the_tests_of_their_configs():
    for name, config in CONFIG_OF.items():
        protocol = PROTOCOLS[name]
        fields = {field: str(getattr(protocol, field)) for field in SETTINGS.values()}
        defaults = {"warmup_len": "0", "clamp_len": "None"}
        assert fields == defaults | read_test_settings(config), name
        assert (protocol.drop_last, protocol.ext_len) == (True, 0)
        assert get_protocol(name.removesuffix("-base")) == protocol
    assert PROTOCOLS.keys() - CONFIG_OF.keys() == {"segments", "single-pass", "sliding-window"}


def test_changes_override_the_protocols_values():
    changes = {"tgt_len": 3, "mem_len": 0, "clamp_len": 4, "same_length": "mem_len+1"}
    changes |= {"batch_size": 2, "ext_len": 1, "warmup_len": 6, "max_tokens": 9, "drop_last": False}
    for name in PROTOCOLS:
        protocol = get_protocol(name, **changes)
        assert {field: getattr(protocol, field) for field in changes} == changes
        assert protocol.name == name


def test_window_is_the_number_of_tokens_before_each_target():
    proto = get_protocol("sliding-window", window=100, batch_size=3)
    assert (proto.tgt_len, proto.mem_len, proto.ext_len, proto.warmup_len) == (1, 0, 99, 100)
    assert (proto.batch_size, proto.max_tokens) == (3, 1000)


@pytest.mark.parametrize(
    ("batch_size", "max_tokens", "n_scored"), [(1, None, 102), (4, None, 102), (10, 50, 50)]
)
def test_tokens_that_do_not_fill_all_rows_are_scored_or_dropped(max_tokens, n_scored, batch_size):
    lengths = {"tgt_len": 8, "batch_size": batch_size, "max_tokens": max_tokens, "warmup_len": 5}
    scored = {}
    for drop_last in (False, True):
        stream = Protocol(drop_last=drop_last, **lengths).stream(TextTokens(np.arange(103)))
        targets = [stream.segment(n).targets_BL.flatten().tolist() for n in range(len(stream))]
        scored[drop_last] = sorted(t for part in targets for t in part if t != IGNORED)
    assert scored[False] == list(range(1, n_scored + 1))
    assert scored[True] == list(range(1, (n_scored + 1) // batch_size * batch_size))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "paper"}, "protocol: invalid paper; expected one of segments, "),
        ({"mem_len": -1}, "mem_len: invalid -1; expected at least 0"),
        ({"tgt_len": 0}, "tgt_len: invalid 0; expected at least 1"),
        ({"max_tokens": 0}, "max_tokens: invalid 0; expected at least 1"),
        ({"window": 0}, "window: invalid 0; expected at least 1"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        get_protocol(**options)
