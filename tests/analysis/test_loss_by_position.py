"""Loss by position in the segment and by length of memory."""

import numpy as np
import pytest
import torch

from txl_lightning import stream_nats
from txl_lightning.analysis.loss_by_position import (
    average_by_memory_len,
    average_by_position,
    score_memory_lens,
)


def some_tokens(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(11, size=count)


def test_each_position_has_the_mean_of_its_own_tokens():
    nats_BGL = np.random.default_rng(0).random((2, 3, 4))
    rows = average_by_position({0: nats_BGL + 1, 8: nats_BGL})
    assert [(row["mem_len"], row["position"]) for row in rows] == [
        (mem_len, position) for mem_len in (0, 8) for position in (1, 2, 3, 4)
    ]
    for row in rows:
        samples = nats_BGL[:, :, row["position"] - 1].ravel() + (row["mem_len"] == 0)
        assert row["nats"] == pytest.approx(sum(samples) / 6)
        spread = sum((sample - row["nats"]) ** 2 for sample in samples) / 5
        assert row["standard_error"] == pytest.approx((spread / 6) ** 0.5)


def test_what_is_saved_is_compared_token_by_token():
    nats_BGL = 100 * np.random.default_rng(0).random((2, 30, 4))
    without, with_8 = average_by_memory_len({0: nats_BGL, 8: nats_BGL - 0.25})
    assert (without["saved"], without["saved_standard_error"]) == (0, 0)
    assert with_8["saved"] == pytest.approx(0.25)
    assert with_8["saved_standard_error"] == pytest.approx(0, abs=1e-9)
    assert with_8["standard_error"] > 1
    assert with_8["nats"] == pytest.approx(nats_BGL.mean() - 0.25)
    assert with_8["tokens"] == 240


def test_the_error_takes_segments_as_one_sample_each():
    """Tokens of a segment that all go up and down together are no more than one."""
    segment_BG1 = np.random.default_rng(0).random((1, 50, 1))
    (row,) = average_by_memory_len({0: np.repeat(segment_BG1, 4, axis=2)})
    assert row["standard_error"] == pytest.approx(segment_BG1.std(ddof=1) / 50**0.5)


def test_every_length_is_measured_on_the_same_tokens_with_a_full_memory(make_net):
    net, tokens = make_net(), some_tokens(2 * 30 + 1)
    nats = score_memory_lens(net, tokens, [9, 0, 4, 9], batch_size=2, tgt_len=4)
    assert list(nats) == [0, 4, 9]
    for mem_len, nats_BGL in nats.items():
        lengths = {"tgt_len": 4, "mem_len": mem_len}
        expected = stream_nats(net, tokens, batch_size=2, **lengths)[:, 12:28]
        torch.testing.assert_close(torch.from_numpy(nats_BGL).flatten(1), expected)


def test_without_memory_the_first_token_is_predicted_from_itself_alone(make_net):
    net, tokens = make_net(), some_tokens(41)
    nats_BGL = score_memory_lens(net, tokens, [0], batch_size=1, tgt_len=5)[0]
    for segment in range(8):
        pair = torch.from_numpy(tokens[None, 5 * segment : 5 * segment + 2])
        expected, _ = net.loss(pair[:, :1], pair[:, 1:])
        assert nats_BGL[0, segment, 0] == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mem_lens": [-1, 4]}, "mem_lens: invalid -1"),
        ({"batch_size": 0}, "batch_size: invalid 0"),
        ({"tgt_len": 0}, "tgt_len: invalid 0"),
        (
            {"mem_lens": [0, 40]},
            "tokens: invalid 61; expected 98 or more for 2 rows of 4",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(make_net, changes, said):
    options = {"mem_lens": [0], "batch_size": 2, "tgt_len": 4} | changes
    with pytest.raises(ValueError, match=said):
        score_memory_lens(make_net(), some_tokens(61), **options)


def test_the_least_text_that_is_asked_for_is_enough(make_net):
    nats = score_memory_lens(make_net(), some_tokens(98), [0, 40], batch_size=2, tgt_len=4)
    assert nats[40].shape == (2, 2, 4)
