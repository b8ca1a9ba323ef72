"""Generation, with everything before a token in memory."""

import pytest
import torch

from txl_lightning import generate
from txl_lightning.generation import Sampling, decode_steps, start_decoding
from txl_lightning.generation import state as state_module
from txl_lightning.generation.state import advance
from txl_lightning.model import CachedReader

UNEQUAL = [260, 1, 2, 129, 40]
LENGTHS = [
    {"mem_len": 200},
    {"mem_len": 5, "same_length": "mem_len+1"},
    {"mem_len": 4, "ext_len": 3},
    {"mem_len": 0, "ext_len": 6, "positions": "absolute_sinusoidal"},
    {"mem_len": 7, "ext_len": 200, "positions": "absolute_learned", "clamp_len": 9},
]


def test_greedy_generation_equals_reading_the_whole_history_for_every_token(make_net):
    net = make_net()
    history = torch.randint(11, (5,))
    for token in generate(net, history, 12, temperature=0, mem_len=40):
        logits, _ = net(history[None])
        assert token == logits[0, -1].argmax()
        history = torch.cat([history, token[None]])


def test_a_prompt_longer_than_the_memory_is_read_in_segments_that_end_with_it(make_net):
    net = make_net(mem_len=3)
    prompt, memory = torch.randint(11, (300,)), None
    for part in prompt.split([43, 128, 128, 1]):
        logits, memory = net(part[None], memory)
    reader, state = CachedReader(net), start_decoding(net, [prompt])
    logits_BV, state = advance(reader, state)
    assert torch.allclose(logits_BV, logits[:, -1], rtol=0, atol=1e-12)
    token_11 = torch.tensor([[4]])
    next_BV, _ = advance(reader, state.append_tokens(token_11))
    assert torch.allclose(next_BV, net(token_11, memory)[0][:, -1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_padding_changes_no_logit_and_no_memory(make_net, lengths):
    ext_len = lengths.get("ext_len", 0)
    net = make_net(**{name: value for name, value in lengths.items() if name != "ext_len"})
    reader, prompts = CachedReader(net), [torch.randint(11, (length,)) for length in UNEQUAL]
    logits_BV, together = advance(reader, start_decoding(net, prompts), ext_len)
    token_B1 = torch.randint(11, (len(prompts), 1))
    next_BV, _ = advance(reader, together.append_tokens(token_B1), ext_len)
    for row, prompt in enumerate(prompts):
        alone_1V, alone = advance(reader, start_decoding(net, [prompt]), ext_len)
        assert torch.allclose(logits_BV[row], alone_1V[0], rtol=0, atol=1e-12)
        assert together.memory.filled_B[row] == alone.memory.filled_B[0]
        next_1V, _ = advance(reader, alone.append_tokens(token_B1[row : row + 1]), ext_len)
        assert torch.allclose(next_BV[row], next_1V[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "ext_len"), [({}, 0), ({"positions": "shaw", "clamp_len": 4}, 5)]
)
def test_a_long_prompt_is_read_only_as_far_back_as_it_is_visible(
    make_net, monkeypatch, changes, ext_len
):
    net, prompts = make_net(**changes), [torch.randint(11, (n,)) for n in (700, 640)]
    reader, state = CachedReader(net), start_decoding(net, prompts)
    assert state_module.skippable_prefix(net, state, ext_len) == 700 - 2 * (6 + 128 + ext_len)
    logits_BV, _ = advance(reader, state, ext_len)
    monkeypatch.setattr(state_module, "skippable_prefix", lambda *_: 0)
    expected_BV, _ = advance(reader, state, ext_len)
    torch.testing.assert_close(logits_BV, expected_BV, rtol=0, atol=1e-12)


def test_the_network_returns_to_its_mode_when_generation_is_abandoned(make_net):
    net = make_net().train()
    steps = decode_steps(net, start_decoding(net, [torch.tensor([1])]), 9, Sampling())
    next(steps)
    steps.close()
    assert net.training
    assert not torch.is_inference_mode_enabled()


def test_the_penalty_covers_the_prompt_as_far_back_as_its_window(make_net):
    net = make_net()
    likeliest = int(net(torch.tensor([[3, 7, 7, 7]]))[0][0, -1].argmax())
    prompt = torch.tensor([likeliest, 7, 7, 7])
    net.head.out.bias.data.zero_()[likeliest] = 1e3
    options = {"temperature": 0, "repetition_penalty": 1e9}
    for window, is_repeated in ((4, False), (3, True)):
        [token] = generate(net, prompt, 1, penalty_window=window, **options)
        assert (token == likeliest) == is_repeated


@pytest.mark.parametrize("positions", ["absolute_learned", "sinusoidal"])
def test_without_a_memory_each_token_is_predicted_from_the_last_few(make_net, positions):
    net = make_net(positions=positions, clamp_len=9, mem_len=0)
    prompt = text = torch.randint(11, (140,))
    for _ in range(6):
        logits, _ = net(text[None, -5:])
        text = torch.cat([text, logits[0, -1:].argmax(-1)])
    assert torch.equal(generate(net, prompt, 6, temperature=0, ext_len=4), text[140:])


@pytest.mark.parametrize("prompt_len", [1, 3, 140])
def test_with_enough_memory_reading_tokens_again_changes_nothing(make_net, prompt_len):
    net, prompt = make_net(mem_len=200), torch.randint(11, (prompt_len,))
    expected = generate(net, prompt, 12, temperature=0)
    assert torch.equal(generate(net, prompt, 12, temperature=0, ext_len=5), expected)


def test_samples_follow_the_models_probabilities(make_net):
    net, prompt = make_net(), torch.tensor([1, 2])
    p_V = net(prompt[None])[0][0, -1].softmax(-1)
    ids = torch.cat(generate(net, [prompt] * 800, 1, seed=0))
    assert (torch.bincount(ids, minlength=11) / 800 - p_V).abs().max() < 5 * (0.25 / 800) ** 0.5
    likeliest = set(p_V.topk(3).indices.tolist())
    ids = set(torch.cat(generate(net, [prompt] * 100, 1, seed=0, top_k=3)).tolist())
    assert ids <= likeliest
    assert len(ids) > 1


def test_equal_seeds_sample_equal_texts_in_a_list_or_alone(make_net):
    net, prompts = make_net(), [torch.randint(11, (length,)) for length in (9, 1, 2)]
    together = generate(net, prompts, 30, seed=3, repetition_penalty=99)
    for row, (prompt, ids) in enumerate(zip(prompts, together, strict=True)):
        assert torch.equal(ids, generate(net, prompt, 30, seed=3 + row, repetition_penalty=99))
    assert len({tuple(ids.tolist()) for ids in together}) == 3
    assert not any(ids.is_inference() for ids in together)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens: invalid -1"),
        ({"temperature": -0.5}, "temperature: invalid -0.5"),
        ({"ext_len": -1}, "ext_len: invalid -1"),
        ({"prompt_L": torch.tensor([], dtype=torch.long)}, "prompt: invalid an empty one"),
        ({"prompt_L": torch.tensor([3, 11])}, r"prompt: invalid \[3, 11\]; .* ids from 0 to 10"),
        ({"prompt_L": []}, "prompts: invalid none"),
        ({"net": {"positions": "absolute_sinusoidal"}}, "ext_len: invalid 0; .* absolute"),
        ({"net": {"mem_len": 0}}, "ext_len: invalid 0; .* mem_len is 0"),
        ({"bias": float("nan")}, "the logits are not finite"),
    ],
)
def test_an_invalid_argument_or_weight_is_an_error_of_one_line(make_net, changes, message):
    options = {"prompt_L": torch.tensor([1]), "max_new_tokens": 3} | changes
    net = make_net(**options.pop("net", {}))
    net.head.out.bias.data[3] = options.pop("bias", 0.0)
    with pytest.raises(ValueError, match=message):
        generate(net, **options)
