"""The memory of models of transformers, as a value; tests/hub has the models."""

import pytest
import torch

from txl_lightning import networks
from txl_lightning.model.config import ContextLengths
from txl_lightning.networks.cache_memory import CacheMemory


@pytest.fixture
def memory():
    """A memory of five tokens in two rows, of which the second has read only three."""
    cached = {f"1.{name}": torch.randn(2, 3, 5, 4) for name in ("keys", "values")}
    cached |= {"0.conv_states.0": torch.randn(2, 6, 3), "0.recurrent_states.0": torch.randn(2, 7)}
    cached = {name: cached[name].requires_grad_() for name in cached}
    return CacheMemory(cached, torch.tensor([5, 3]), torch.tensor([9, 3]), mem_len=4)


def test_a_memory_keeps_the_newest_keys_and_whole_states(memory):
    after = memory.end_segment()
    assert after.n_kept == 4
    assert after.filled_B.tolist() == [4, 3]
    assert after.position_B.tolist() == [9, 3]
    for name in memory.cached:
        kept = memory.cached[name]
        expected = kept[:, :, 1:] if name.startswith("1.") else kept
        assert torch.equal(after.cached[name], expected), name


@pytest.mark.parametrize("keeps", [False, True])
def test_a_memory_has_a_gradient_only_if_it_is_kept(memory, keeps):
    memory = memory.keep_gradient() if keeps else memory
    after = memory.end_segment()
    assert {each.requires_grad for each in after.cached.values()} == {keeps}


def test_a_memory_is_not_changed_by_what_is_made_of_it(memory):
    before = {name: each.clone() for name, each in memory.tensors().items()}
    memory.end_segment()
    memory.forget_states(torch.tensor([True, True]))
    memory.resize(ContextLengths(0, None, None))
    torch.testing.assert_close(memory.tensors(), before, rtol=0, atol=0)


def test_states_are_forgotten_in_rows_where_a_document_begins(memory):
    after = memory.forget_states(torch.tensor([False, True]))
    for name in memory.cached:
        is_key = name.startswith("1.")
        assert torch.equal(after.cached[name][0], memory.cached[name][0]), name
        assert after.cached[name][1].any() == is_key, name


def test_a_memory_in_another_precision_keeps_whole_numbers(memory):
    after = memory.to(torch.bfloat16)
    assert {each.dtype for each in after.cached.values()} == {torch.bfloat16}
    assert after.position_B.dtype == after.filled_B.dtype == torch.long


def test_a_memory_of_length_0_has_no_tensor_of_a_layer(memory):
    after = memory.resize(ContextLengths(0, None, None))
    assert after.tensors().keys() == {"filled_B", "position_B"}
    assert after.filled_B.tolist() == after.position_B.tolist() == [0, 0]


def test_an_empty_memory_is_restored_to_a_full_one_by_its_tensors(memory):
    none = torch.zeros(1, dtype=torch.long)
    restored = CacheMemory({}, none, none, mem_len=4).restore(memory.tensors())
    torch.testing.assert_close(restored.tensors(), memory.tensors(), rtol=0, atol=0)
    assert restored.rows(slice(1, 2)).batch_size == 1


def test_a_family_that_fails_the_checker_is_refused_without_transformers():
    with pytest.raises(ValueError, match=r"^model_type: invalid gpt2; expected one of bamba, falc"):
        networks.HuggingFaceConfig(model_type="gpt2")


@pytest.mark.parametrize("family", ["gla", "gated_deltanet"])
def test_a_family_of_flash_linear_attention_is_refused_as_such(family):
    message = f"^model_type: invalid {family}; .*flash-linear-attention need a GPU"
    with pytest.raises(ValueError, match=message):
        networks.HuggingFaceConfig(model_type=family)


@pytest.mark.parametrize(("field", "value"), [("n_token", 0), ("mem_len", -1), ("settings", [1])])
def test_invalid_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=f"^{field}: invalid "):
        networks.HuggingFaceConfig(**{field: value})
