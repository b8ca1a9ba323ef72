"""Sampling, with everything before it in memory."""

import pytest
import torch

from txl_lightning import generate


def test_it_equals_reading_the_whole_history_again_for_every_token(make_net):
    net = make_net()
    history = torch.randint(11, (5,))
    found = generate(net, history, 12, temperature=0, mem_len=40)
    for token in found:
        logits, _ = net(history[None])
        assert token == logits[0, -1].argmax()
        history = torch.cat([history, token[None]])


def test_a_prompt_longer_than_the_memory_is_read_in_order(make_net):
    net = make_net(mem_len=3)
    prompt = torch.randint(11, (300,))
    memory = None
    for part in prompt.split(128):
        logits, memory = net(part[None], memory)
    assert generate(net, prompt, 1, temperature=0) == logits[0, -1].argmax()


@pytest.mark.parametrize("positions", ["absolute_sinusoidal", "absolute_learned", "sinusoidal"])
def test_without_a_memory_each_token_is_drawn_from_the_last_few(make_net, positions):
    net = make_net(positions=positions, clamp_len=9, mem_len=0)
    prompt = torch.randint(11, (140,))
    text = prompt
    for _ in range(6):
        logits, _ = net(text[None, -5:])
        text = torch.cat([text, logits[0, -1:].argmax(-1)])
    assert torch.equal(generate(net, prompt, 6, temperature=0, ext_len=4), text[140:])


@pytest.mark.parametrize("prompt_len", [1, 3, 140])
def test_with_enough_memory_reading_again_changes_nothing(make_net, prompt_len):
    net, prompt = make_net(mem_len=200), torch.randint(11, (prompt_len,))
    expected = generate(net, prompt, 12, temperature=0)
    assert torch.equal(generate(net, prompt, 12, temperature=0, ext_len=5), expected)


def test_absolute_positions_must_have_something_to_read_again(make_net):
    net = make_net(positions="absolute_sinusoidal")
    with pytest.raises(ValueError, match=r"ext_len: 0 .* at least 1, because positions are absol"):
        generate(net, torch.tensor([1]), 1)


def test_the_same_seed_draws_the_same_text(make_net):
    net, prompt = make_net(), torch.tensor([1])
    first, again, other = (generate(net, prompt, 30, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draws_follow_the_models_probabilities(make_net):
    net, prompt = make_net(), torch.tensor([1, 2])
    p_V = net(prompt[None])[0][0, -1].softmax(-1)
    drawn = torch.cat([generate(net, prompt, 1, seed=seed) for seed in range(800)])
    counts = torch.bincount(drawn, minlength=11) / 800
    assert (counts - p_V).abs().max() < 5 * (0.25 / 800) ** 0.5


def test_top_k_draws_only_the_likeliest(make_net):
    net, prompt = make_net(), torch.tensor([1, 2])
    likeliest = set(net(prompt[None])[0][0, -1].topk(3).indices.tolist())
    drawn = {generate(net, prompt, 1, seed=seed, top_k=3).item() for seed in range(100)}
    assert drawn <= likeliest
    assert len(drawn) > 1


def test_nothing_is_drawn_for_length_zero(make_net):
    assert len(generate(make_net(), torch.tensor([1]), 0)) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": -1}, "length: -1 is not possible"),
        ({"temperature": -0.5}, "temperature: -0.5 is not possible"),
        ({"top_k": 0}, "top_k: 0 is not possible"),
        ({"prompt_L": torch.tensor([], dtype=torch.long)}, "prompt: an empty one is not possible"),
    ],
)
def test_what_cannot_be_sampled_is_refused(make_net, changes, message):
    options = {"prompt_L": torch.tensor([1]), "length": 3} | changes
    with pytest.raises(ValueError, match=message):
        generate(make_net(), **options)
