"""The classes for transformers 5: folders, segments, generate, Trainer."""

import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import txl_lightning
from txl_lightning import hub
from txl_lightning.checkpoints import save_folder
from txl_lightning.convert import load_huggingface, save_huggingface
from txl_lightning.data.vocab import Bytes, Characters
from txl_lightning.errors import CheckpointError
from txl_lightning.generation.state import SEGMENT_LEN, read_to_end, start_decoding
from txl_lightning.model import EvalLengths
from txl_lightning.model.reading import Reader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*another code's files have no checksum"),
]
ABC = Characters("abcdefghijk")
NETWORKS = {
    "plain": {},
    "clamped": {"clamp_len": 4, "same_length": "mem_len", "untie_r": True},
    "clusters": {"cutoffs": (3, 7), "div_val": 2, "norm": "pre"},
    "learned": {"positions": "learned", "clamp_len": 9},
    "same_layer": {"memory_source": "same_layer"},
}


@pytest.fixture
def load(make_net, tmp_path):
    """Write a network as convert does, and load it with the Auto class."""

    def load_network(**changes):
        net = make_net(**changes)
        folder = tmp_path / "net"
        save_folder(net, folder, ABC if net.config.n_token == 11 else None)
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert type(model) is hub.TXLForCausalLM
        return net, model

    return load_network


@pytest.fixture(params=NETWORKS)
def pair(request, load):
    return load(**NETWORKS[request.param])


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(11, shape)


# Folders


def test_a_folder_is_loaded_and_saved_without_changing_a_bit(pair, tmp_path):
    net, model = pair
    model.save_pretrained(tmp_path / "again")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    ours, vocab = txl_lightning.load(tmp_path / "again")
    assert (vocab, ours.config, back.training) == (ABC, net.config, False)
    for other in (model.net, back.net, ours):
        torch.testing.assert_close(other.state_dict(), net.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["default_like", "div2_unshared_untied_words"])
@pytest.mark.parametrize("is_pickle", [True, False])
def test_a_folder_of_transformers_4_has_its_nats_with_memory_and_is_written_as_it_was(
    name, is_pickle, repository, tmp_path
):
    golden = np.load(repository / "tests" / "golden" / "huggingface" / f"{name}.npz")
    weights = {n[3:]: torch.from_numpy(golden[n]) for n in golden if n.startswith("sd.")}
    (tmp_path / "config.json").write_text(str(golden["config"]))
    if is_pickle:
        torch.save(weights, tmp_path / "pytorch_model.bin")
    else:
        save_file(weights, tmp_path / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(model) is hub.TransfoXLLMHeadModel
    data = torch.from_numpy(golden["data"]).long()
    tgt_len = int(golden["tgt_len"])
    memory = None
    rows_BT = data.flatten()[: data.numel() // 3 * 3].view(3, -1)
    for index, start in enumerate(range(0, rows_BT.size(1) - 1, tgt_len)):
        part = rows_BT[:, start : start + tgt_len + 1]
        with torch.no_grad():
            output = model(part[:, :-1], past_key_values=memory)
        memory = output.past_key_values
        logp = output.logits.log_softmax(-1).gather(2, part[:, 1:, None])[..., 0]
        expected = torch.from_numpy(golden[f"nll.{index}"]).t().double()
        torch.testing.assert_close(-logp, expected, rtol=0, atol=1e-5)
    model.float().save_pretrained(tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(again[key], weights[key]) for key in again)
    settings = json.loads((tmp_path / "again" / "config.json").read_text())
    assert settings.items() <= json.loads(str(golden["config"])).items()
    net, _ = load_huggingface(tmp_path / "again")
    torch.testing.assert_close(net.state_dict(), model.net.state_dict(), rtol=0, atol=0)


def test_a_folder_that_transformers_4_wrote_is_read_there_again_after_saving(repository, tmp_path):
    python = os.environ.get("TXL_REFERENCE_PYTHON")
    assert python, "TXL_REFERENCE_PYTHON must be a Python with tests/reference/requirements.txt"
    script = repository / "tests" / "reference" / "transfo_xl.py"
    sizes = {"d_model": 18, "d_embed": 18, "n_head": 3, "d_head": 5, "d_inner": 29, "n_layer": 2}
    sizes |= {"vocab_size": 97, "cutoffs": [20, 41], "mem_len": 11, "dropout": 0.0, "div_val": 1}
    settings = {"own": sizes, "shared": sizes | {"untie_r": False, "clamp_len": 9}}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    np.save(tmp_path / "tokens.npy", tokens_BT := random_ids(3, 50).numpy())
    subprocess.run([python, script, "make", tmp_path], check=True)
    for name in settings:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        model.save_pretrained(tmp_path / f"{name}-back")
    subprocess.run([python, script, "measure", tmp_path], check=True)
    for name in settings:
        theirs = [np.load(tmp_path / each / "nats.npy") for each in (name, f"{name}-back")]
        assert np.array_equal(*theirs)
        ours = txl_lightning.stream_nats(
            hub.TransfoXLLMHeadModel.from_pretrained(tmp_path / name).net, tokens_BT.flatten(),
            batch_size=3, tgt_len=7,
        )  # fmt: skip
        torch.testing.assert_close(ours, torch.from_numpy(theirs[0]), rtol=0, atol=1e-5)


def test_no_code_in_a_folder_is_run(make_net, tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    evil = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nclass Evil: pass\n"
    for folder, save in ((tmp_path / "a", save_folder), (tmp_path / "b", save_huggingface)):
        save(make_net(n_token=256), folder, Bytes())
        (folder / "evil.py").write_text(evil)
        path = folder / "config.json"
        auto = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": auto}))
        tokenizer = {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        assert type(AutoTokenizer.from_pretrained(folder)) is hub.TXLTokenizer
        for trust in (False, True):
            AutoConfig.from_pretrained(folder, trust_remote_code=trust)
            AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust)
    (tmp_path / "b" / "model.safetensors").unlink()
    (tmp_path / "b" / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: (refused|damaged)"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_a_hub_is_found_in_the_cache_of_downloads(load, tmp_path):
    _, model = load()
    cache = tmp_path / "cache" / "models--me--net"
    commit = "0" * 40
    shutil.copytree(tmp_path / "net", cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    options = {"cache_dir": str(tmp_path / "cache"), "local_files_only": True}
    back = AutoModelForCausalLM.from_pretrained("me/net", **options)
    torch.testing.assert_close(back.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_options_change_precision_device_and_memory_and_others_are_refused(load, tmp_path):
    net, model = load()
    options = {"dtype": "float32", "device_map": {"": "cpu"}, "mem_len": 2}
    short = AutoModelForCausalLM.from_pretrained(tmp_path / "net", **options)
    assert (short.dtype, short.config.mem_len, model.dtype) == (torch.float32, 2, torch.float64)
    tokens_BL = random_ids(2, 9)
    memory = net.empty_memory(2, EvalLengths(2))
    first = short(tokens_BL).past_key_values
    second = short(tokens_BL, first).logits.double()
    _, memory = net(tokens_BL, memory)
    torch.testing.assert_close(second, net(tokens_BL, memory)[0], rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="from_pretrained: invalid quantization_config; expected"):
        hub.TXLForCausalLM.from_pretrained(tmp_path / "net", quantization_config={"bits": 4})


OF_EITHER_CLASS = pytest.mark.parametrize("loader", [AutoModelForCausalLM, hub.TXLForCausalLM])


@OF_EITHER_CLASS
def test_torch_dtype_is_the_former_name_of_dtype_and_low_memory_has_no_effect(
    load, tmp_path, loader
):
    load()
    for options, expected in (
        ({"torch_dtype": torch.bfloat16}, torch.bfloat16),
        ({"torch_dtype": "float32", "low_cpu_mem_usage": True}, torch.float32),
        ({"torch_dtype": "auto"}, torch.float64),
        ({"torch_dtype": "float64", "dtype": "float32"}, torch.float32),
    ):
        model = loader.from_pretrained(tmp_path / "net", **options)
        assert model.dtype == model.config.dtype == expected


@OF_EITHER_CLASS
@pytest.mark.parametrize("dtype", ["bfloat17", "nn", "int8", 5])
def test_a_precision_that_weights_cannot_have_is_refused_in_one_line(load, tmp_path, loader, dtype):
    load()
    expected = "auto, float16, bfloat16, float32 or float64"
    for key in ("dtype", "torch_dtype"):
        with pytest.raises(ValueError, match=rf"^dtype: invalid {dtype}; expected {expected}$"):
            loader.from_pretrained(tmp_path / "net", **{key: dtype})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "fp16"}, "save_pretrained: invalid variant; expected one of"),
        ({"max_shard_size": 500}, "max_shard_size: invalid 500; expected at least the size"),
        ({"max_shard_size": "1KB"}, "max_shard_size: invalid 1KB; expected at least the size"),
        ({"safe_serialization": False}, "safe_serialization: invalid False; expected True"),
        ({"distributed_checkpoint": True}, "save_pretrained: invalid distributed_checkpoint"),
    ],
)
def test_an_option_that_would_have_no_effect_on_a_written_folder_is_refused(
    load, tmp_path, options, message
):
    _, model = load()
    with pytest.raises(ValueError, match=f"^{message}"):
        model.save_pretrained(tmp_path / "copy", **options)
    assert not (tmp_path / "copy").exists()
    kept = {"max_shard_size": "5GB", "variant": None, "safe_serialization": True, "token": "t"}
    model.save_pretrained(tmp_path / "copy", **kept)


@pytest.mark.parametrize("save", [save_folder, save_huggingface])
def test_weights_in_several_files_are_refused_as_such(make_net, tmp_path, save):
    save(make_net(norm="post"), tmp_path, None)
    whole = tmp_path / "model.safetensors"
    part = tmp_path / "model-00001-of-00002.safetensors"
    whole.rename(part)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(ValueError, match=r"several files, with an \.index\.json; expected"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_the_message_about_an_unknown_option_lists_every_option(load, tmp_path):
    load()
    with pytest.raises(ValueError, match="from_pretrained: invalid dtipe; expected") as info:
        hub.TXLForCausalLM.from_pretrained(tmp_path / "net", dtipe="float32")
    parameters = inspect.signature(hub.TXLForCausalLM.from_pretrained).parameters.values()
    named = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    listed = str(info.value).partition("one of ")[2].split(", ")
    assert named < set(listed)
    assert {"cache_dir", "low_cpu_mem_usage"} < set(listed)


# Segments


@pytest.mark.parametrize("has_gradients", [True, False])
def test_segments_have_the_logits_of_the_network_and_a_memory_is_never_changed(pair, has_gradients):
    net, model = pair
    memory = None
    cache = None
    for tokens_BL in random_ids(3, 21).split(7, dim=1):
        expected, memory = net(tokens_BL, memory)
        with torch.set_grad_enabled(has_gradients):
            output = model(tokens_BL, cache)
            again = model(tokens_BL, cache, logits_to_keep=2, return_dict=False)
        torch.testing.assert_close(output.logits, expected)
        torch.testing.assert_close(again[0], expected[:, -2:])
        cache = output.past_key_values
        assert cache.get_seq_length() == again[1].get_seq_length()
    assert cache.get_seq_length() == 21


def test_the_loss_of_labels_and_its_gradients_are_those_of_the_network(pair):
    net, model = pair
    tokens_BL = random_ids(3, 9)
    first_BL = random_ids(3, 5)
    labels_BL = tokens_BL.masked_fill(torch.rand(3, 9) < 0.3, -100)
    model.train()
    output = model(tokens_BL, model(first_BL).past_key_values, labels=labels_BL)
    output.loss.backward()
    _, memory = net(first_BL)
    nats_BL, _ = net.loss(tokens_BL[:, :-1], labels_BL[:, 1:], memory)
    expected = nats_BL.sum() / (labels_BL[:, 1:] != -100).sum()
    torch.testing.assert_close(output.loss, expected)
    expected.backward()
    for (name, weight), other in zip(net.named_parameters(), model.net.parameters(), strict=True):
        torch.testing.assert_close(other.grad, weight.grad, msg=name)


def test_padding_of_any_id_before_or_after_a_text_has_no_effect(pair):
    net, model = pair
    tokens_BL = random_ids(1, 8)
    expected = net(tokens_BL)[0][0]
    for padding, kept in (((5, 0), slice(5, None)), ((0, 5), slice(0, 8))):
        padded_BL = torch.nn.functional.pad(tokens_BL, padding, value=99)
        logits = model(padded_BL, attention_mask=(padded_BL != 99).long()).logits[0, kept]
        torch.testing.assert_close(logits, expected)


def test_a_memory_without_gradients_is_refused_in_a_pass_with_gradients(load):
    _, model = load()
    with torch.no_grad():
        cache = model(random_ids(1, 4)).past_key_values
    with pytest.raises(
        ValueError, match="past_key_values: invalid KeyValueCache; expected None, or"
    ):
        model(random_ids(1, 4), cache)


SHAPES = {
    "only the new tokens": (2, 4),
    "a token too many": (2, 11),
    "one row": (1, 10),
    "three rows": (3, 10),
    "by query": (2, 4, 10),
    "by head and query": (2, 1, 4, 10),
    "no rows": (10,),
}


@pytest.mark.parametrize("has_gradients", [True, False])
@pytest.mark.parametrize("has_labels", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_a_mask_of_another_shape_than_all_tokens_so_far_is_refused(
    load, name, has_labels, has_gradients
):
    _, model = load()
    tokens_BL = random_ids(2, 4)
    labels = tokens_BL if has_labels else None
    with torch.set_grad_enabled(has_gradients):
        cache = model(random_ids(2, 6)).past_key_values
        shape = re.escape(f"attention_mask: invalid shape {[*SHAPES[name]]}; expected [2, 10], ")
        with pytest.raises(ValueError, match=f"^{shape}"):
            model(tokens_BL, cache, torch.ones(SHAPES[name]), labels)
        model(tokens_BL, cache, torch.ones(2, 10), labels)


@pytest.mark.parametrize("n_new", [1, 6])
def test_a_mask_of_one_new_token_or_of_as_many_as_were_read_is_refused(load, n_new):
    _, model = load()
    cache = model(random_ids(2, 6)).past_key_values
    with pytest.raises(ValueError, match=rf"attention_mask: invalid shape \[2, {n_new}\]"):
        model(random_ids(2, n_new), cache, torch.ones(2, n_new))


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([[1, 1, 0, 0, 1]], "padding between tokens; expected padding before or after"),
        ([[0, 1, 0, 1, 0]], "padding between tokens; expected padding before or after"),
        ([[0.0, 0, 0, -1e9, -1e9]], r"\[-1000000000\.0, 0\.0\]; expected 1 for tokens"),
        ([[0, 0, 1, 1, 2]], r"\[0, 1, 2\]; expected 1 for tokens, 0 for padding"),
    ],
)
def test_a_mask_that_a_memory_cannot_follow_is_refused(load, mask, reason):
    _, model = load()
    with pytest.raises(ValueError, match=f"^attention_mask: invalid {reason}"):
        model(random_ids(1, 5), attention_mask=torch.tensor(mask))
    with pytest.raises(ValueError, match=r"^attention_mask: invalid dict; expected"):
        model(random_ids(1, 5), attention_mask={"full_attention": None})


@pytest.mark.parametrize("kind", [torch.bool, torch.float32, torch.long])
def test_a_mask_of_all_tokens_reads_the_memory_and_no_padding_in_it(pair, kind):
    net, model = pair
    text_T = random_ids(1, 9)
    _, memory = net(text_T[:, :5])
    expected, _ = net(text_T[:, 5:], memory)
    padded_T = torch.nn.functional.pad(text_T, (2, 0), value=99)
    mask_T = (padded_T != 99).to(kind)
    cache = None
    for part, stop in ((slice(0, 7), 7), (slice(7, 11), 11)):
        output = model(padded_T[:, part], cache, mask_T[:, :stop])
        cache = output.past_key_values
    torch.testing.assert_close(output.logits, expected)


@pytest.mark.parametrize("cache", [transformers.DynamicCache(), ((torch.zeros(1, 2, 3, 4),) * 2,)])
def test_a_cache_of_another_model_is_refused(load, cache):
    _, model = load()
    kind = type(cache).__name__
    with pytest.raises(ValueError, match=f"^past_key_values: invalid {kind}; expected None, or"):
        model(random_ids(1, 5), cache)


def test_labels_of_another_shape_are_refused(load):
    _, model = load()
    tokens_BL = random_ids(2, 5)
    for labels in (tokens_BL[:1], tokens_BL[:, 1:], random_ids(5, 2)):
        with pytest.raises(ValueError, match=r"^labels: invalid .*; expected \[2, 5\]"):
            model(tokens_BL, labels=labels)


def test_logits_are_those_of_the_places_that_are_kept(load):
    _, model = load()
    tokens_BL = random_ids(2, 5)
    places = torch.tensor([0, 3])
    some = model(tokens_BL, logits_to_keep=places).logits
    torch.testing.assert_close(some, model(tokens_BL).logits[:, places])


@pytest.mark.parametrize("padding", [(4, 0), (0, 4)])
@pytest.mark.parametrize("is_marked", [True, False])
def test_padding_on_either_side_is_not_in_the_loss(pair, padding, is_marked):
    _, model = pair
    tokens_BL = random_ids(1, 8)
    padded_BL = torch.nn.functional.pad(tokens_BL, padding, value=0)
    mask_BL = torch.nn.functional.pad(torch.ones(1, 8), padding)
    labels_BL = padded_BL.masked_fill(mask_BL == 0, -100) if is_marked else padded_BL
    loss = model(padded_BL, attention_mask=mask_BL, labels=labels_BL).loss
    torch.testing.assert_close(loss, model(tokens_BL, labels=tokens_BL).loss)


# generate

LENGTHS = [1, 5, SEGMENT_LEN + 1, 3 * SEGMENT_LEN - 20]


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_text_is_our_own_token_for_token(pair, length):
    net, model = pair
    prompt = random_ids(1, length)
    expected = txl_lightning.generate(net, prompt[0], 20, temperature=0)
    actual = model.generate(prompt, max_new_tokens=20, do_sample=False)
    assert actual[0, length:].tolist() == expected.tolist()


@pytest.mark.parametrize("num_beams", [2, 5])
def test_each_beam_keeps_its_own_memory(load, num_beams):
    """As if the whole text were read for each token."""
    _, model = load(mem_len=40)
    options = {"max_new_tokens": 20, "num_beams": num_beams, "do_sample": False}
    prompt = random_ids(1, 9)
    expected = model.generate(prompt, use_cache=False, **options)
    assert model.generate(prompt, **options).tolist() == expected.tolist()


def check_logits(net, prompts: list[torch.Tensor], output) -> list[torch.Tensor]:
    """Require the logits of our own decoding at each step; return them."""
    reader = Reader(net)
    state = start_decoding(net, prompts)
    steps = []
    for logits_BV in output.logits:
        ours_BV, state = read_to_end(reader, state)
        torch.testing.assert_close(logits_BV, ours_BV.float(), rtol=0, atol=1e-5)
        token_B = output.sequences[:, len(state)]
        state = state.append_tokens(token_B[:, None])
        steps.append(ours_BV.float())
    return steps


WITH_LOGITS = {"max_new_tokens": 15, "output_logits": True, "return_dict_in_generate": True}


def test_sampled_tokens_are_draws_from_our_logits(pair):
    net, model = pair
    prompt = random_ids(1, LENGTHS[-1])
    transformers.set_seed(3)
    output = model.generate(prompt, temperature=0.7, do_sample=True, top_k=0, **WITH_LOGITS)
    steps = check_logits(net, [prompt[0]], output)
    transformers.set_seed(3)
    tokens = [torch.multinomial((logits / 0.7).softmax(-1), 1).item() for logits in steps]
    assert output.sequences[0, LENGTHS[-1] :].tolist() == tokens


def test_prompts_of_several_lengths_are_continued_as_by_our_own_decoding(pair):
    net, model = pair
    prompts = [random_ids(length) for length in (3, 50, 200)]
    tokens_BL = torch.stack([torch.nn.functional.pad(p, (200 - len(p), 0)) for p in prompts])
    mask_BL = torch.arange(200) >= torch.tensor([[197], [150], [0]])
    output = model.generate(tokens_BL, attention_mask=mask_BL.long(), **WITH_LOGITS)
    check_logits(net, prompts, output)


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"use_cache": False}])
@pytest.mark.parametrize("row", [[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])
def test_a_prompt_with_padding_after_a_token_is_not_continued(load, row, options):
    _, model = load()
    mask_BL = torch.tensor([[1] * 5, row])
    expected = 'attention_mask: invalid padding after a token; expected .* padding_side="left"$'
    with pytest.raises(ValueError, match=expected):
        model.generate(random_ids(2, 5), attention_mask=mask_BL, max_new_tokens=1, **options)


def test_a_text_is_continued_from_its_memory_which_stays_as_it_was(load):
    _, model = load()
    prompt = random_ids(1, 30)
    whole = model.generate(prompt, max_new_tokens=20, do_sample=False)
    first = model.generate(prompt, max_new_tokens=8, return_dict_in_generate=True)
    for _ in range(2):
        memory = {"past_key_values": first.past_key_values}
        rest = model.generate(first.sequences, max_new_tokens=12, **memory)
        assert rest.tolist() == whole.tolist()


@pytest.mark.parametrize("n_padding", [0, 3])
def test_a_text_or_what_follows_its_memory_is_continued_the_same(load, n_padding):
    _, model = load(mem_len=40)
    first = random_ids(2, 6)
    rest = random_ids(2, 5)
    mask = (torch.arange(11) >= torch.tensor([[0], [n_padding]])).long()
    whole = torch.cat([first, rest], 1)
    expected = model.generate(whole, attention_mask=mask, max_new_tokens=9)[:, 11:].tolist()
    with torch.no_grad():
        cache = model(first, attention_mask=mask[:, :6]).past_key_values
    options = {"attention_mask": mask, "past_key_values": cache, "max_new_tokens": 9}
    assert model.generate(whole, **options)[:, 11:].tolist() == expected
    assert model.generate(rest, **options)[:, 5:].tolist() == expected
    assert model.generate(rest, **options, prefill_chunk_size=2)[:, 5:].tolist() == expected


@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize("n_new", [1, 4, 6])
def test_new_tokens_without_those_in_memory_are_refused(load, n_new, has_mask):
    _, model = load()
    with torch.no_grad():
        cache = model(random_ids(1, 6)).past_key_values
    mask = torch.ones(1, n_new) if has_mask else None
    expected = f"^input_ids: invalid {n_new} tokens; expected the whole text, more than the 6 in"
    with pytest.raises(ValueError, match=expected):
        model.generate(random_ids(1, n_new), attention_mask=mask, past_key_values=cache)


@pytest.mark.parametrize("shape", [(1, 5), (2, 4), (2, 6), (3, 5), (2, 1, 5, 5)])
def test_a_mask_of_another_shape_than_the_prompts_is_refused(load, shape):
    _, model = load()
    expected = re.escape(f"attention_mask: invalid shape {[*shape]}; expected [2, 5]")
    with pytest.raises(ValueError, match=expected):
        model.generate(random_ids(2, 5), attention_mask=torch.ones(shape), max_new_tokens=2)


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_return_sequences": 2}])
def test_several_texts_do_not_continue_one_memory_in_one_call(load, options):
    _, model = load()
    first = model.generate(random_ids(1, 5), max_new_tokens=3, return_dict_in_generate=True)
    options |= {"past_key_values": first.past_key_values, "do_sample": True}
    with pytest.raises(ValueError, match="memory: invalid 1 rows; expected 2"):
        model.generate(first.sequences, max_new_tokens=3, **options)


@pytest.mark.parametrize("changes", [{"positions": "absolute_sinusoidal"}, {"mem_len": 0}])
def test_without_a_usable_memory_the_whole_text_is_read_for_each_token(load, changes):
    net, model = load(**changes)
    prompt = random_ids(1, 9)
    with pytest.raises(ValueError, match=r"use_cache: invalid True; expected False, because"):
        model.generate(prompt, max_new_tokens=5)
    actual = model.generate(prompt, max_new_tokens=5, use_cache=False)
    expected = txl_lightning.generate(net, prompt[0], 5, temperature=0, ext_len=20)
    assert actual[0, 9:].tolist() == expected.tolist()


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_text_ends_at_a_stop_string_that_a_tokenizer_reads(make_net, tmp_path, use_cache):
    net = make_net(n_token=256)
    # ASCII only, as other bytes it chooses would be no text.
    net.head.out.bias.data[128:] -= 1e3
    save_folder(net, tmp_path, Bytes())
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    prompt = tokenizer("a prompt", return_tensors="pt")
    options = {"max_new_tokens": 9, "do_sample": False, "use_cache": use_cache}
    whole = model.generate(**prompt, **options)[0]
    stop = tokenizer.decode(whole[8:11])
    ended = model.generate(**prompt, **options, stop_strings=[stop], tokenizer=tokenizer)
    assert ended[0].tolist() == whole[:11].tolist()


def test_assisted_decoding_is_refused(load):
    _, model = load()
    with pytest.raises(ValueError, match="not supported with stateful models"):
        model.generate(random_ids(1, 9), max_new_tokens=5, prompt_lookup_num_tokens=2)


# Trainer


def train(config, folder, rows: int = 8, accumulated: int = 1, **options):
    """Train a network for six steps; return it, and the loss before and after."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    text_BL = torch.arange(11).repeat(60)[:640].view(64, 10)
    labels_BL = text_BL.masked_fill(torch.rand(64, 10) < torch.rand(64, 1), -100)
    data = Dataset.from_dict({"input_ids": text_BL.tolist(), "labels": labels_BL.tolist()})
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=rows, learning_rate=1e-2, max_steps=6,
        gradient_accumulation_steps=accumulated, save_steps=3, report_to="none", use_cpu=True,
        disable_tqdm=True, optim="sgd",
        # Clipping would hide a wrong scale of the loss.
        max_grad_norm=0,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)
    before = trainer.evaluate()["eval_loss"]
    trainer.train(**options)
    return model, before, trainer.evaluate()["eval_loss"]


@pytest.mark.parametrize("config_class", [hub.TXLConfig, hub.TransfoXLConfig])
def test_trainer_lowers_the_loss_and_resumes_with_the_weights_that_it_saved(
    config_class, make_net, tmp_path
):
    config = config_class.from_network(make_net(d_model=16, untie_r=False).config)
    model, before, after = train(config, tmp_path)
    assert after < before
    checkpoint = str(tmp_path / "checkpoint-3")
    resumed, _, _ = train(config, tmp_path / "other", resume_from_checkpoint=checkpoint)
    torch.testing.assert_close(resumed.state_dict(), model.state_dict())
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    torch.testing.assert_close(back.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_both_classes_are_trained_to_the_same_weights(make_net, tmp_path):
    net = make_net(n_head=3, d_model=12, norm="post", untie_r=True).config
    kinds = (hub.TXLConfig, hub.TransfoXLConfig)
    ours, theirs = (train(kind.from_network(net), tmp_path)[0].state_dict() for kind in kinds)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_accumulated_batches_have_the_loss_of_one_large_batch(make_net, tmp_path):
    config = hub.TXLConfig.from_network(make_net().config)
    large, _, _ = train(config, tmp_path, rows=16)
    small, _, _ = train(config, tmp_path, rows=4, accumulated=4)
    torch.testing.assert_close(small.state_dict(), large.state_dict(), rtol=0, atol=1e-6)


# README


def test_the_code_of_the_page_runs_unchanged(make_net, tmp_path, monkeypatch, repository, capsys):
    monkeypatch.chdir(tmp_path)
    save_folder(make_net(n_token=256).float(), tmp_path / "big", Bytes())
    page = (repository / "txl_lightning" / "hub" / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert len(capsys.readouterr().out) > 20
    assert type(AutoTokenizer.from_pretrained("big")) is hub.TXLTokenizer


def test_prompts_padded_as_the_page_says_are_continued_like_each_alone(
    make_net, tmp_path, repository
):
    save_folder(make_net(n_token=256), tmp_path, Bytes())
    page = (repository / "txl_lightning" / "hub" / "README.md").read_text()
    setting, call = re.findall(r"`((?:tokenizer\.pad_token =|model\.generate\(\*\*)[^`]*)`", page)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["a", "a longer text"]
    names = {"model": model, "tokenizer": tokenizer, "texts": texts}
    exec(setting, names)
    rows = eval(call, names)
    for text, row in zip(texts, rows, strict=True):
        prompt = torch.tensor([*text.encode()])
        expected = txl_lightning.generate(model.net, prompt, 50, temperature=0)
        assert row[-50:].tolist() == expected.tolist()


def test_hooks_act_with_and_without_gradients(load):
    _, model = load()
    ids = random_ids(2, 6)
    before = model(ids).logits.detach()
    model.net.layers[0].attention.register_forward_hook(lambda module, inputs, output: output * 0)
    expected = model(ids).logits.detach()
    with torch.no_grad():
        actual = model(ids).logits
    assert not torch.allclose(expected, before)
    torch.testing.assert_close(actual, expected)
