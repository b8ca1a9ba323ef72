"""What holds of the kernels for CUDA where there is none; no GPU has run them yet."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention

from txl_lightning.model.kernels import CUDA_KERNELS, flex, sdpa

SCRIPT = Path(__file__).parents[2] / "experiments" / "gpu" / "correctness.py"
spec = importlib.util.spec_from_file_location("correctness", SCRIPT)
sys.modules["correctness"] = correctness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(correctness)

SIZES = [(1, 0), (1, 5), (63, 7), (5, 64), (8, 8)]
CASES = [correctness.Case(*size, "rvub") for size in SIZES]
CASES += [correctness.Case(5, 7, names) for names in ("rvu", "r", "ub", "")]


@pytest.fixture
def flex_on_cpu(monkeypatch):
    """FlexAttention as the products that it stands for; PyTorch forbids their gradient on a CPU."""
    monkeypatch.setattr(flex, "fused_attention", lambda: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    torch._dynamo.reset()
    yield flex.attend
    torch._dynamo.reset()


# The second one PyTorch hides itself, unless warnings are errors.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_flex_equals_the_reference_with_every_gradient(flex_on_cpu, case):
    errors = correctness.differences(flex_on_cpu, case, torch.float64)
    assert max(errors.values()) < 1e-12, errors


def test_flex_is_refused_with_dropout_of_attention(make_net):
    with pytest.raises(ValueError, match=r"^dropatt: invalid 0.1; expected 0 with kernel flex"):
        make_net(kernel="flex", dropatt=0.1)


@pytest.mark.parametrize("kernel", sorted(CUDA_KERNELS))
def test_elsewhere_a_kernel_for_cuda_computes_as_sdpa(make_net, kernel):
    net, other = make_net(kernel=kernel), make_net(kernel="sdpa")
    other.load_state_dict(net.state_dict())
    tokens_BL = torch.randint(11, (2, 5))
    assert torch.equal(net(tokens_BL)[0], other(tokens_BL)[0])


def test_sdpa_on_cuda_asks_neither_cudnn_nor_flash():
    cuda = torch.backends.cuda
    backends = (
        cuda.cudnn_sdp_enabled, cuda.flash_sdp_enabled,
        cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled,
    )  # fmt: skip
    before = [is_enabled() for is_enabled in backends]
    with sdpa.right_backends(torch.device("cuda")):
        assert [is_enabled() for is_enabled in backends] == [False, False, True, True]
    with sdpa.right_backends(torch.device("cpu")):
        assert [is_enabled() for is_enabled in backends] == before
