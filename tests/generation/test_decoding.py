"""Generation uses all memory."""

import pytest
import torch

from txl_lightning import LanguageModel, TransformerXLConfig, generate, stream_nats
from txl_lightning.data.vocab import Characters, WordOptions, Words
from txl_lightning.generation import Sampling, decode_steps, start_decoding
from txl_lightning.generation import state as state_module
from txl_lightning.generation.state import read_to_end
from txl_lightning.model.adaptation import Adaptation
from txl_lightning.model.reading import Reader

UNEQUAL = [260, 1, 2, 129, 40]
LENGTHS = [
    {"mem_len": 200},
    {"mem_len": 5, "same_length": "mem_len+1"},
    {"mem_len": 4, "ext_len": 3},
    {"mem_len": 0, "ext_len": 6, "positions": "absolute_sinusoidal"},
    {"mem_len": 7, "ext_len": 200, "positions": "absolute_learned", "clamp_len": 9},
]
PROMPT = torch.tensor([1, 3, 0, 2])
LETTERS = Characters("abcdefghijk")


def assert_close(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("net", "prompt_len", "ext_len", "context_len"),
    [
        *(({"mem_len": 200}, prompt_len, 5, 200) for prompt_len in (1, 3, 140)),
        ({"mem_len": 200}, 5, 0, 200),
        ({"mem_len": 0}, 140, 4, 5),
        ({"mem_len": 0, "positions": "absolute_learned", "clamp_len": 9}, 140, 4, 5),
    ],
    ids=str,
)
def test_greedy_generation_equals_rereading_the_context_for_every_token(
    make_net, net, prompt_len, ext_len, context_len
):
    net = make_net(**net)
    history = torch.randint(11, (prompt_len,))
    for token in generate(net, history, 12, temperature=0, ext_len=ext_len):
        logits_BLV, _ = net(history[None, -context_len:])
        assert token == logits_BLV[0, -1].argmax()
        history = torch.cat([history, token[None]])


def test_a_prompt_longer_than_the_memory_is_read_in_segments_that_end_with_it(make_net):
    net = make_net(mem_len=3)
    prompt = torch.randint(11, (300,))
    memory = None
    for part in prompt.split([43, 128, 128, 1]):
        logits, memory = net(part[None], memory)
    reader = Reader(net)
    state = start_decoding(net, [prompt])
    logits_BV, state = read_to_end(reader, state)
    assert_close(logits_BV, logits[:, -1])
    token_11 = torch.tensor([[4]])
    next_BV, _ = read_to_end(reader, state.append_tokens(token_11))
    assert_close(next_BV, net(token_11, memory)[0][:, -1])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_padding_changes_no_logit_and_no_memory(make_net, lengths):
    ext_len = lengths.get("ext_len", 0)
    net = make_net(**{name: value for name, value in lengths.items() if name != "ext_len"})
    reader = Reader(net)
    prompts = [torch.randint(11, (length,)) for length in UNEQUAL]
    logits_BV, together = read_to_end(reader, start_decoding(net, prompts, ext_len=ext_len))
    token_B1 = torch.randint(11, (len(prompts), 1))
    next_BV, _ = read_to_end(reader, together.append_tokens(token_B1))
    for row, prompt in enumerate(prompts):
        alone_1V, alone = read_to_end(reader, start_decoding(net, [prompt], ext_len=ext_len))
        assert_close(logits_BV[row], alone_1V[0])
        assert together.memory.filled_B[row] == alone.memory.filled_B[0]
        next_1V, _ = read_to_end(reader, alone.append_tokens(token_B1[row : row + 1]))
        assert_close(next_BV[row], next_1V[0])


@pytest.mark.parametrize(
    ("changes", "ext_len"), [({}, 0), ({"positions": "shaw", "clamp_len": 4}, 5)]
)
def test_a_long_prompt_is_read_only_as_far_back_as_it_is_visible(
    make_net, monkeypatch, changes, ext_len
):
    net = make_net(**changes)
    prompts = [torch.randint(11, (n,)) for n in (700, 640)]
    reader = Reader(net)
    state = start_decoding(net, prompts, ext_len=ext_len)
    assert state_module.count_skippable_tokens(net, state) == 700 - 2 * (6 + 128 + ext_len)
    logits_BV, _ = read_to_end(reader, state)
    monkeypatch.setattr(state_module, "count_skippable_tokens", lambda *_: 0)
    assert_close(logits_BV, read_to_end(reader, state)[0])


def test_the_mode_of_the_network_is_restored_when_generation_is_abandoned(make_net):
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


def test_samples_follow_the_models_probabilities(make_net):
    net = make_net()
    prompt = torch.tensor([1, 2])
    p_V = net(prompt[None])[0][0, -1].softmax(-1)
    ids = torch.cat(generate(net, [prompt] * 800, 1, seed=0))
    assert (torch.bincount(ids, minlength=11) / 800 - p_V).abs().max() < 5 * (0.25 / 800) ** 0.5


def test_each_token_of_a_text_is_sampled_independently(make_net):
    """With nearly equal probabilities, one random number for all would give one token."""
    ids = generate(make_net(), PROMPT, 30, temperature=1e6, seed=0)
    assert len(ids.unique()) > 5


def test_equal_seeds_sample_equal_texts_whatever_the_other_prompts(make_net):
    net = make_net()
    prompts = [torch.randint(11, (length,)) for length in (9, 1, 2)]
    together = generate(net, prompts, 30, seed=3, repetition_penalty=99)
    for row, (prompt, ids) in enumerate(zip(prompts, together, strict=True)):
        equal = generate(net, [prompt] * (row + 1), 30, seed=3, repetition_penalty=99)
        assert torch.equal(ids, equal[row])
    assert len({tuple(ids.tolist()) for ids in together}) == 3
    assert not any(ids.is_inference() for ids in together)


def test_a_continuation_has_the_form_of_its_prompt(make_net):
    def run(prompt, vocab=LETTERS):
        return generate(net, prompt, 5, vocab=vocab, temperature=0)

    net = make_net()
    ids = PROMPT.tolist()
    expected = run(PROMPT)
    assert run(ids) == run(PROMPT.numpy()) == expected.tolist()
    assert run(LETTERS.decode(ids)) == LETTERS.decode(expected.tolist())
    words = Words(tuple(LETTERS.alphabet), WordOptions(line_end="none", unknown="error"))
    spaced = f" {' '.join(LETTERS.alphabet[n] for n in expected)}"
    assert run(words.decode(ids), words) == spaced
    assert run(["bd", ids]) == [run("bd"), run(ids)]


def test_a_lightning_module_generates_as_its_network_does():
    model = LanguageModel(TransformerXLConfig(n_layer=1, d_model=8))
    options = {"max_new_tokens": 4, "temperature": 0}
    assert torch.equal(generate(model, PROMPT, **options), generate(model.net, PROMPT, **options))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens: invalid -1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens: invalid 2.5; expected a whole number"),
        ({"temperature": -0.5}, "temperature: invalid -0.5"),
        ({"ext_len": -1}, "ext_len: invalid -1"),
        ({"temprature": 1}, r"^temprature: unknown key; did you mean temperature\?"),
        ({"memlen": 1}, r"^memlen: unknown key; did you mean mem_len\?"),
        ({"colour": 1}, "^colour: unknown key; see --help"),
        ({"prompt": torch.tensor([], dtype=torch.long)}, "prompt: invalid empty prompt"),
        ({"prompt": torch.tensor([3, 11])}, r"prompt: invalid \[3, 11\]; .* ids from 0 to 10"),
        ({"prompt": []}, "prompts: invalid none"),
        ({"prompt": [0.5, 1.5]}, "prompt: invalid 0.5; expected a text, or ids in one dimension"),
        ({"prompt": torch.tensor([0.5])}, r"prompt: invalid tensor\(\[0.5000\]\); expected a text"),
        ({"prompt": torch.tensor([[1, 2]])}, r"prompt: invalid tensor\(\[\[1, 2\]\]\); expected"),
        ({"prompt": None}, "prompt: invalid None; expected .* in one dimension; or a list"),
        ({"prompt": "abc"}, "vocab: invalid None; expected the vocabulary of the text"),
        ({"prompt": "xyz", "vocab": LETTERS}, "prompt: 'x' is not among the vocabulary's 11 char"),
        ({"net": {"positions": "absolute_sinusoidal"}}, "ext_len: invalid 0; .* absolute"),
        ({"net": {"mem_len": 0}}, "ext_len: invalid 0; .* mem_len is 0"),
        ({"bias": float("nan")}, "the logits are not finite"),
    ],
)
def test_an_invalid_argument_or_weight_is_an_error_of_one_line(make_net, changes, message):
    options = {"prompt": torch.tensor([1]), "max_new_tokens": 3} | changes
    net = make_net(**options.pop("net", {}))
    net.head.out.bias.data[3] = options.pop("bias", 0.0)
    with pytest.raises(ValueError, match=message):
        generate(net, **options)


@pytest.mark.parametrize("ext_len", [0, 3])
def test_a_cache_gives_each_text_the_distribution_that_is_scored(make_net, ext_len):
    net = make_net(mem_len=200)
    use = Adaptation(cache_len=9, cache_theta=30.0)
    prompts = [torch.randint(11, (count,)) for count in (1, 2, 150)]
    state = start_decoding(net, prompts, None, ext_len, use)
    for after in decode_steps(net, state, 3, Sampling(seed=1)):
        state = after
    logits_BV, state = read_to_end(Reader(net, Adaptation()), state)
    for row, logits_V in enumerate(logits_BV):
        text_L = state.row_tokens(row)
        for token in range(11):
            ids = torch.cat([text_L, torch.tensor([token])])
            nats = stream_nats(net, ids, batch_size=1, tgt_len=64, adaptation=use)[0, -1]
            torch.testing.assert_close(-logits_V.log_softmax(-1)[token], nats, rtol=0, atol=1e-9)


@pytest.mark.parametrize("cache_len", [5, 200, 880])
def test_a_cache_has_the_states_of_a_prompt_beyond_the_memory(make_net, cache_len):
    """With same_length, a state is the same in any segments."""
    net = make_net(mem_len=3, same_length="mem_len")
    use = Adaptation(cache_len=cache_len, cache_theta=3.0, cache_weight=0.9)
    prompt = torch.randint(11, (900,))
    logits_BV, _ = read_to_end(Reader(net, use), start_decoding(net, [prompt], None, 0, use))
    for token, logp in enumerate(logits_BV[0].log_softmax(-1)):
        ids = torch.cat([prompt, torch.tensor([token])])
        nats = stream_nats(net, ids, batch_size=1, tgt_len=300, adaptation=use)[0, -1]
        torch.testing.assert_close(-logp, nats, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shift", [0.0, 50.0, -50.0])
def test_a_cache_of_weight_0_changes_no_text_with_any_penalty(make_net, shift):
    net = make_net(mem_len=30)
    prompt = torch.randint(11, (20,))
    net.head.out.bias.data.add_(shift)
    how = {"temperature": 0, "repetition_penalty": 3.0}
    use = Adaptation(cache_len=100, cache_weight=0.0)
    texts = [generate(net, prompt, 40, adaptation=each, **how) for each in (Adaptation(), use)]
    assert torch.equal(*texts)
    assert not torch.equal(texts[0], generate(net, prompt, 40, temperature=0))


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2], [3]]], ids=["one", "two"])
def test_generation_refuses_steps(make_net, prompt):
    with pytest.raises(ValueError, match=r"^rate: invalid 0.5; expected 0: generation takes no"):
        generate(make_net(), prompt, 3, adaptation=Adaptation(rate=0.5))
    state = start_decoding(make_net(), [torch.tensor([1])], adaptation=Adaptation(rate=0.5))
    with pytest.raises(ValueError, match=r"^rate: invalid 0.5"):
        next(decode_steps(make_net(), state, 3, Sampling()))
