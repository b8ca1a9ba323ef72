"""Beam search finds the likeliest continuation, where it keeps enough of them."""

from itertools import product

import pytest
import torch

from txl_lightning import generate
from txl_lightning.generation import beam_search, search_beams, start_decoding
from txl_lightning.generation.state import advance
from txl_lightning.model import CachedReader

PROMPT = torch.tensor([1, 3, 0, 2])


@pytest.fixture
def net(make_net):
    return make_net(n_token=4, mem_len=9)


def logp(net, ids_BL: list[list[int]]) -> list[float]:
    """The log-probability of continuations that are equally long, each read in one go."""
    ids_BL = torch.tensor(ids_BL)
    text_BL = torch.cat([PROMPT.expand(len(ids_BL), -1), ids_BL], dim=1)
    logp_BLV = net(text_BL)[0][:, len(PROMPT) - 1 : -1].log_softmax(-1)
    return logp_BLV.gather(2, ids_BL[..., None]).sum((1, 2)).tolist()


def every(net, length: int, end: int | None) -> dict[tuple[int, ...], float]:
    """Every continuation that has `end` only at its end, and ends with it or has the length."""
    found = {}
    for n in range(1, length + 1):
        whole = [
            ids
            for ids in product(range(4), repeat=n)
            if end not in ids[:-1] and (n == length or ids[-1] == end)
        ]
        if whole:
            found.update(zip(whole, logp(net, whole), strict=True))
    return found


@pytest.mark.parametrize("end", [None, 0])
def test_enough_beams_equal_exhaustive_search(make_net, end):
    lengths = set()
    for seed in range(6):
        torch.manual_seed(seed)
        net = make_net(n_token=4, mem_len=9)
        known = every(net, 4, end)
        for power in (0.0, 0.7, 1.0, 2.0):
            best = max(known, key=lambda ids: known[ids] / len(ids) ** power)
            options = {"num_beams": 64, "length_penalty": power}
            found = beam_search(net, PROMPT, 4, is_finished=lambda ids: ids[-1] == end, **options)
            assert tuple(found.tolist()) == best
            lengths.add(len(best))
    # Only then does it matter what lengths are worth.
    assert lengths == {4} if end is None else len(lengths) > 1


def test_one_beam_equals_greedy_generation(net):
    for count in (0, 9):
        expected = generate(net, PROMPT, count, temperature=0)
        assert torch.equal(beam_search(net, PROMPT, count, num_beams=1), expected)


def test_a_finished_text_takes_no_beam_from_the_others(net):
    """One beam, and the likeliest token ends the text: long texts are worth more."""
    likeliest = int(generate(net, PROMPT, 1, temperature=0))
    options = {"num_beams": 1, "is_finished": lambda ids: ids[-1] == likeliest}
    assert len(beam_search(net, PROMPT, 3, length_penalty=9.0, **options)) > 1


def test_each_beam_keeps_its_own_memory(make_net):
    """What comes after the text that is found is what comes after it when it is read alone."""
    for seed in range(4):
        torch.manual_seed(seed)
        net = make_net(n_token=4, mem_len=9)
        found = search_beams(net, start_decoding(net, [PROMPT]), 6, num_beams=5)
        assert found.n_read == len(found) - 1
        alone = start_decoding(net, [found.row_tokens(0).clone()])
        expected, _ = advance(CachedReader(net), alone)
        result, _ = advance(CachedReader(net), found)
        assert torch.allclose(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["num_beams", "length_penalty", "max_new_tokens", "ext_len"])
def test_an_invalid_argument_is_refused_by_name(net, name):
    with pytest.raises(ValueError, match=f"{name}: invalid -1"):
        beam_search(net, PROMPT, **{"max_new_tokens": 3, name: -1})
