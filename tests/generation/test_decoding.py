"""Texts continued, with everything before a token in memory."""

import pytest
import torch

from txl_lightning import generate
from txl_lightning.generation import Sampling, begun, continued
from txl_lightning.generation import state as texts_module
from txl_lightning.generation.state import out_of_sight, read
from txl_lightning.model import CachedReader


def test_it_equals_reading_the_whole_history_again_for_every_token(make_net):
    net = make_net()
    history = torch.randint(11, (5,))
    found = generate(net, history, 12, temperature=0, mem_len=40)
    for token in found:
        logits, _ = net(history[None])
        assert token == logits[0, -1].argmax()
        history = torch.cat([history, token[None]])


def test_a_prompt_longer_than_the_memory_is_read_in_order(make_net):
    """In segments that end with the prompt; its last token is one by itself."""
    net = make_net(mem_len=3)
    prompt = torch.randint(11, (300,))
    memory = None
    for part in prompt.split([43, 128, 128, 1]):
        logits, memory = net(part[None], memory)
    texts = begun(net, [prompt], None)
    logits_BV, texts = read(net, texts, ext_len=0)
    assert torch.allclose(logits_BV, logits[:, -1], rtol=0, atol=1e-12)
    token_11 = torch.tensor([[4]])
    next_BV, _ = read(net, texts.followed_by(token_11), ext_len=0)
    assert torch.allclose(next_BV, net(token_11, memory)[0][:, -1], rtol=0, atol=1e-12)


UNEQUAL = [260, 1, 2, 129, 40]
LENGTHS = [
    {"mem_len": 200, "kernel": "matmul"},
    {"mem_len": 5, "same_length": "mem_len+1"},
    {"mem_len": 0, "ext_len": 6},
    {"mem_len": 4, "ext_len": 3},
    {"mem_len": 0, "ext_len": 6, "positions": "absolute_sinusoidal"},
    {"mem_len": 7, "ext_len": 200, "positions": "absolute_learned", "clamp_len": 9},
    {"mem_len": 9, "kernel": "reference"},
]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("temperature", [0, 1])
def test_prompts_of_any_lengths_are_continued_as_each_alone(make_net, lengths, temperature):
    ext_len = lengths.get("ext_len", 0)
    net = make_net(**{name: lengths[name] for name in lengths if name != "ext_len"})
    prompts = [torch.randint(11, (length,)) for length in UNEQUAL]
    options = {"temperature": temperature, "ext_len": ext_len, "repetition_penalty": 99}
    found = generate(net, prompts, 9, seed=3, **options)
    for row, (prompt, ids) in enumerate(zip(prompts, found, strict=True)):
        assert torch.equal(ids, generate(net, prompt, 9, seed=3 + row, **options))
    assert len({tuple(ids.tolist()) for ids in found}) > 2


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_padding_changes_no_score_and_no_memory(make_net, lengths):
    ext_len = lengths.get("ext_len", 0)
    net = make_net(**{name: lengths[name] for name in lengths if name != "ext_len"})
    prompts = [torch.randint(11, (length,)) for length in UNEQUAL]
    logits_BV, together = read(net, begun(net, prompts, None), ext_len)
    token_B1 = torch.randint(11, (len(prompts), 1))
    for row, prompt in enumerate(prompts):
        alone_BV, alone = read(net, begun(net, [prompt], None), ext_len)
        assert torch.allclose(logits_BV[row], alone_BV[0], rtol=0, atol=1e-12)
        assert together.memory.filled_B[row] == alone.memory.filled_B[0]
        next_BV, _ = read(net, alone.followed_by(token_B1[row : row + 1]), ext_len)
        again_BV, _ = read(net, together.followed_by(token_B1), ext_len)
        assert torch.allclose(again_BV[row], next_BV[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("ext_len", [0, 5])
@pytest.mark.parametrize(
    "how", [{}, {"positions": "shaw", "clamp_len": 4}, {"memory_source": "same_layer"}]
)
def test_of_a_long_prompt_only_what_can_be_seen_is_read(make_net, monkeypatch, how, ext_len):
    net, prompts = make_net(**how), [torch.randint(11, (n,)) for n in (700, 640)]
    found, after = read(net, begun(net, prompts, None), ext_len)
    skipped = out_of_sight(net, begun(net, prompts, None), ext_len)
    assert skipped == (0 if "memory_source" in how else 700 - 2 * (6 + 128 + ext_len))
    monkeypatch.setattr(texts_module, "out_of_sight", lambda *_: 0)
    expected, _ = read(net, begun(net, prompts, None), ext_len)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert after.read == 700


def test_an_unknown_token_is_refused(make_net):
    with pytest.raises(ValueError, match=r"prompt: invalid \[3, 11\]; .* ids from 0 to 10"):
        begun(make_net(), [torch.tensor([3, 11])], None)


def test_a_list_gives_a_list_and_a_prompt_its_tokens(make_net):
    net, prompt = make_net(), torch.tensor([1, 2])
    [only] = generate(net, [prompt], 5, seed=1)
    assert torch.equal(only, generate(net, prompt, 5, seed=1))
    with pytest.raises(ValueError, match="prompts: invalid none"):
        generate(net, [], 5)


def test_what_it_gives_is_an_ordinary_tensor(make_net):
    ids = generate(make_net(), torch.tensor([1]), 3)
    ids += 1
    assert not ids.is_inference()


def test_the_network_is_left_in_its_mode_also_when_nobody_wants_the_rest(make_net):
    net = make_net().train()
    steps = continued(net, begun(net, [torch.tensor([1])], None), 9, Sampling())
    next(steps)
    steps.close()
    assert net.training
    assert not torch.is_inference_mode_enabled()


def test_a_token_is_read_only_for_the_next_one(make_net, monkeypatch):
    net, seen = make_net(), []
    hidden = CachedReader.hidden
    monkeypatch.setattr(
        CachedReader,
        "hidden",
        lambda reader, tokens_BL, *rest, **k: (
            seen.append(tokens_BL.size(1)) or hidden(reader, tokens_BL, *rest, **k)
        ),
    )
    generate(net, torch.randint(11, (140,)), 4)
    assert seen == [11, 128, 1, 1, 1, 1]


def test_a_text_that_is_broken_off_goes_on_as_if_it_were_not(make_net):
    net, prompts = make_net(), [torch.tensor([1]), torch.randint(11, (9,))]
    options = {"sampling": Sampling(repetition_penalty=1.2, top_p=0.9), "seed": 4, "ext_len": 2}
    *_, whole = continued(net, begun(net, prompts, None), 20, **options)
    *_, first = continued(net, begun(net, prompts, None), 8, **options)
    *_, second = continued(net, first, 12, **options)
    assert torch.equal(second.tokens_BL, whole.tokens_BL)
    for texts in (second, whole):
        assert texts.read == len(texts) - 1


def test_the_penalty_looks_back_over_the_prompt_as_far_as_its_window(make_net):
    net, prompt = make_net(), torch.tensor([3, 7, 7, 7])
    p_V = net(prompt[None])[0][0, -1].softmax(-1)
    likeliest = int(p_V.argmax())
    options = {"temperature": 0, "repetition_penalty": 1e9}
    prompt = torch.tensor([likeliest, 7, 7, 7])
    net.head.out.bias.data.zero_()[likeliest] = 1e3
    for window, repeated in ((4, False), (3, True)):
        found = generate(net, prompt, 1, penalty_window=window, **options)
        assert (found == likeliest) == repeated


def test_a_penalty_makes_a_text_repeat_itself_less(make_net):
    net, prompt = make_net(), torch.tensor([1])
    kinds = [
        len(set(generate(net, prompt, 11, temperature=0, repetition_penalty=by).tolist()))
        for by in (1.0, 1e6)
    ]
    assert kinds[0] < kinds[1]


def test_a_broken_network_is_one_line(make_net):
    net = make_net()
    net.head.out.bias.data[3] = float("nan")
    with pytest.raises(ValueError, match="the network's scores are not finite"):
        generate(net, torch.tensor([1]), 3)


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
    with pytest.raises(
        ValueError, match=r"ext_len: invalid 0; .* at least 1, because positions are absol"
    ):
        generate(net, torch.tensor([1]), 1)


def test_the_same_seed_draws_the_same_text(make_net):
    net, prompt = make_net(), torch.tensor([1])
    first, again, other = (generate(net, prompt, 30, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draws_follow_the_models_probabilities(make_net):
    net, prompt = make_net(), torch.tensor([1, 2])
    p_V = net(prompt[None])[0][0, -1].softmax(-1)
    drawn = torch.cat(generate(net, [prompt] * 800, 1, seed=0))
    counts = torch.bincount(drawn, minlength=11) / 800
    assert (counts - p_V).abs().max() < 5 * (0.25 / 800) ** 0.5


def test_top_k_draws_only_the_likeliest(make_net):
    net, prompt = make_net(), torch.tensor([1, 2])
    likeliest = set(net(prompt[None])[0][0, -1].topk(3).indices.tolist())
    drawn = set(torch.cat(generate(net, [prompt] * 100, 1, seed=0, top_k=3)).tolist())
    assert drawn <= likeliest
    assert len(drawn) > 1


def test_nothing_is_drawn_for_length_zero(make_net):
    assert len(generate(make_net(), torch.tensor([1]), 0)) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": -1}, "length: invalid -1"),
        ({"temperature": -0.5}, "temperature: invalid -0.5"),
        ({"top_k": 0}, "top_k: invalid 0"),
        ({"prompt_L": torch.tensor([], dtype=torch.long)}, "prompt: invalid an empty one"),
    ],
)
def test_what_cannot_be_sampled_is_refused(make_net, changes, message):
    options = {"prompt_L": torch.tensor([1]), "length": 3} | changes
    with pytest.raises(ValueError, match=message):
        generate(make_net(), **options)
