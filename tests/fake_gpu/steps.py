"""Take steps of training and evaluation on a CUDA device that does nothing; print what would wait.

    LD_PRELOAD=device.so python steps.py            # what would wait
    LD_PRELOAD=device.so python steps.py --count    # operators of a training step, and their bytes

Tensors are fake: they have shape, precision and device, but no values. What needs a value, and so
would wait for a GPU, raises. Prints a line of JSON for each configuration that fails, and at last
the number of all. With --count, prints a line for each of two published networks under bf16
autocast, lines for a token of enwik8_base, without and with a ring, and one for an update of
NVIDIA's wt103_base.
"""

import json
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import yaml
from torch._subclasses import fake_tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from txl_lightning import Adaptation
from txl_lightning.data.stream import Segment
from txl_lightning.model import TransformerXL, TransformerXLConfig
from txl_lightning.model.kernels import sdpa
from txl_lightning.model.reading import Reader, read_segment, score_segment
from txl_lightning.model.ring import Decoder
from txl_lightning.training.network_size import LADDER

PAPER = Path(__file__).parents[2] / "configs" / "paper"
BASE = TransformerXLConfig(
    n_token=32, n_layer=2, n_head=2, d_model=32, mem_len=16, dropout=0.1, clamp_len=10,
    kernel="sdpa",
)  # fmt: skip
KERNELS = ("sdpa", "reference", "per_head")
SCHEMES = ("sinusoidal", "learned", "shaw", "absolute_sinusoidal", "absolute_learned")
RINGS = ("sinusoidal", "learned", "shaw")
OTHERS = (
    {"norm": "pre"}, {"norm": "pre_kv"}, {"memory_source": "same_layer"}, {"mem_len": 0},
    {"dropout_type": "variational"}, {"same_length": "mem_len"}, {"d_embed": 8}, {"dropatt": 0.1},
    {"cutoffs": (8, 16)}, {"cutoffs": (8, 16), "div_val": 2},
)  # fmt: skip
PRECISIONS = {
    "bf16-mixed": (torch.float32, torch.bfloat16), "16-mixed": (torch.float32, torch.float16),
    "32-true": (torch.float32, None), "bf16-true": (torch.bfloat16, None),
    "64-true": (torch.float64, None),  # the precision of the weights, and of autocast
}  # fmt: skip
VIEWS = {
    "view", "_unsafe_view", "expand", "permute", "transpose", "t", "slice", "select", "unsqueeze",
    "squeeze", "unbind", "split", "split_with_sizes", "detach", "alias", "as_strided", "empty",
    "empty_like", "new_empty", "empty_strided", "device", "lift_fresh", "promote_types",
}  # fmt: skip  # operators that start nothing on the device
TARGETS_BL = torch.arange(24).view(3, 8)  # on the host: numbers, unlike those of a fake tensor


def attend_efficiently(
    q: Any, k: Any, v: Any, attn_mask: Any, dropout_p: float = 0.0, scale: float | None = None
) -> Any:
    """Call the operator that PyTorch chooses on CUDA, in the precision of autocast."""
    kinds = {part.dtype for part in (q, k, v)}
    if torch.is_autocast_enabled("cuda"):
        kinds = {torch.get_autocast_dtype("cuda")}
    [kind] = kinds
    with torch._C._DisableAutocast():
        parts = [part.to(kind) for part in (q, k, v, attn_mask)]
        attend = torch.ops.aten._scaled_dot_product_efficient_attention
        return attend(*parts, True, dropout_p, scale=scale)[0]


def keep_numbers(original: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """Return Tensor.cpu or Tensor.numpy for real tensors; in the mode they return no numbers."""

    def call(tensor: torch.Tensor) -> Any:
        assert not isinstance(tensor, fake_tensor.FakeTensor), "waits for the device"
        with fake_tensor.unset_fake_temporarily():
            return original(tensor)

    return call


@contextmanager
def use_autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """Enable autocast without asking CUDA whether it is there."""
    if dtype is not None:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


class Counter(TorchDispatchMode):
    """Counts operators that start something on the device, and bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if name not in VIEWS:
            self.operators += 1
            # These write their first argument, and return it, without reading it.
            parts = (args, kwargs) if name in ("copy_", "fill_") else (args, kwargs, out)
            if name.startswith("_foreach_") and name.endswith("_") and name != "_foreach_copy_":
                # What they write, too.
                parts = (*parts, args[0])
            tensors = [each for each in tree_leaves(parts) if isinstance(each, torch.Tensor)]
            self.bytes += sum(each.numel() * each.element_size() for each in tensors)
        return out


def count_operators(name: str, n_token: int) -> dict[str, Any]:
    """Count those of forward and backward of a published network with a full memory."""
    run = yaml.safe_load((PAPER / f"{name}.yaml").read_text())
    config = TransformerXLConfig(**run["model"]["net"] | {"n_token": n_token, "kernel": "sdpa"})
    # Autocast, which asks whether CUDA is there, would not be enabled again for each chunk.
    config = replace(config, loss_chunk_size=None)
    shape = run["data"]["batch_size"], run["data"]["tgt_len"]
    # As many of each rank as Zipf says; on the host, as an adaptive softmax needs them.
    torch.manual_seed(1)
    drawn_BL = (n_token ** torch.rand(shape)).long().clamp(max=n_token - 1)
    counter = Counter()
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.autograd.set_multithreading_enabled(False):
        with torch.device("cuda:0"):
            net = TransformerXL(config).train()
            tokens_BL = torch.zeros(shape, dtype=torch.long)
            memory = net.empty_memory(len(tokens_BL)).to(torch.bfloat16)
        targets_BL = drawn_BL if net.head.reads_targets else tokens_BL
        with counter:
            with use_autocast(torch.bfloat16):
                nats_BL, _ = net.loss(tokens_BL, targets_BL, memory, tokens_BL)
            torch.autograd.grad(nats_BL.sum(), list(net.parameters()))
    return {"name": name, "operators": counter.operators, "gigabytes": counter.bytes / 1e9}


def count_token(has_ring: bool) -> int:
    """Count the operators of a token of enwik8_base in bfloat16, in one row."""
    run = yaml.safe_load((PAPER / "enwik8_base.yaml").read_text())
    config = TransformerXLConfig(**run["model"]["net"] | {"n_token": 256})
    return read_tokens(config, torch.bfloat16, has_ring, n_row=1)


def count_update() -> dict[str, Any]:
    """Count the operators of an update of NVIDIA's wt103_base by LAMB; most are of many weights."""
    # Here, because it imports Lightning.
    from txl_lightning.training.optimizers import OptimConfig, make_optimizer

    run = yaml.safe_load((PAPER.parent / "nvidia" / "wt103_base.yaml").read_text())["model"]
    config = TransformerXLConfig(**run["net"] | {"n_token": 267_735})
    counter = Counter()
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.device("cuda:0"):
        net = TransformerXL(config)
        weights = list(net.parameters())
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        optimizer = make_optimizer(OptimConfig(**run["optim"]), net)
        optimizer.step()
        with counter:
            optimizer.step()
    counts = {"weights": len(weights), "numbers": sum(weight.numel() for weight in weights)}
    return (
        {"name": "lamb", "operators": counter.operators}
        | counts
        | {"gigabytes": counter.bytes / 1e9}
    )


def take_steps(config: TransformerXLConfig, weights: torch.dtype, amp: torch.dtype | None) -> None:
    """Train on two segments and evaluate two; assert the devices and precisions of the results."""
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.autograd.set_multithreading_enabled(False):
        with torch.device("cuda:0"):
            torch.set_default_dtype(weights)
            net = TransformerXL(config).train()
            torch.set_default_dtype(torch.float32)
            tokens_BL, doc_pos_BL = (torch.zeros(3, 8, dtype=torch.long) for _ in range(2))
        targets_BL = TARGETS_BL if net.head.reads_targets else tokens_BL
        memory = None
        for _ in range(2):
            with use_autocast(amp):
                nats_BL, memory = net.loss(tokens_BL, targets_BL, memory, doc_pos_BL)
            gradients = torch.autograd.grad(nats_BL.sum(), list(net.parameters()))
        for weight, gradient in zip(net.parameters(), gradients, strict=True):
            assert (gradient.dtype, gradient.device) == (weight.dtype, weight.device)
        h_NBMD = memory.h_NBMD
        assert (h_NBMD.device.type, h_NBMD.dtype) == ("cuda", amp or weights), h_NBMD
        reader = Reader(net.eval())
        memory = None
        for _ in range(2):
            with torch.no_grad(), use_autocast(amp):
                nats_BL, memory = reader.loss(tokens_BL, targets_BL, memory, doc_pos_BL)
        assert nats_BL.device.type == "cuda"


def read_tokens(
    config: TransformerXLConfig, weights: torch.dtype, has_ring: bool = True, n_row: int = 3
) -> int:
    """Read a prompt and single tokens; return the operators of the last token."""
    counter = Counter()
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        with torch.device("cuda:0"):
            torch.set_default_dtype(weights)
            net = TransformerXL(replace(config, kernel="auto")).eval()
            torch.set_default_dtype(torch.float32)
            tokens_B8, doc_pos_B8 = (torch.zeros(n_row, 8, dtype=torch.long) for _ in range(2))
        reader = Decoder(net, Adaptation())
        # Where there is one, it is as in a graph.
        reader.has_ring = has_ring
        places = [doc_pos_B8, doc_pos_B8[:, :1]] if n_row > 1 else [None, None]
        _, memory = reader.hidden(tokens_B8, None, places[0])
        for _ in range(3):
            counter.operators = 0
            with counter:
                h_B1D, memory = reader.hidden(tokens_B8[:, :1], memory, places[1])
        assert (reader.ring is not None) == has_ring
        states = h_B1D, *memory.tensors().values()
        assert {(each.device.type, each.dtype) for each in states[:-1]} == {("cuda", weights)}
    return counter.operators


def take_own_steps(weights: torch.dtype, amp: torch.dtype | None) -> None:
    """Train and evaluate a network of one's own, without and with states."""
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.autograd.set_multithreading_enabled(False):
        with torch.device("cuda:0"):
            torch.set_default_dtype(weights)
            own = read_own_config()(n_token=32, width=8).build().train()
            derived = OwnLoss(BASE).eval()
            torch.set_default_dtype(torch.float32)
            tokens_BL = torch.zeros(3, 8, dtype=torch.long)
        with use_autocast(amp):
            nats_BL, _ = own.loss(tokens_BL, tokens_BL)
        torch.autograd.grad(nats_BL.sum(), list(own.parameters()))
        segment = Segment(tokens_BL, tokens_BL, tokens_BL, 0, 24.0)
        for net in (own.eval(), derived):
            reader = Reader(net)
            memory = reader.empty_memory(3)
            for _ in range(2):
                with torch.no_grad(), use_autocast(amp):
                    scored_BL, memory = score_segment(reader, segment, memory)
                    h_BLD, _ = read_segment(reader, segment, memory)
                    nats_BL = reader.head.nats(h_BLD, TARGETS_BL)
                assert (scored_BL.device.type, nats_BL.device.type) == ("cuda", "cuda")


def read_own_config() -> Any:
    """Return the config of the network on the page for networks of one's own."""
    page = (PAPER.parents[1] / "docs" / "own_network.md").read_text()
    module = types.ModuleType("my_package")
    sys.modules[module.__name__] = module
    exec(page.split("```python\n")[1].split("```")[0], vars(module))
    return module.MyConfig


class OwnLoss(TransformerXL):
    def loss(self, *inputs: Any) -> Any:
        return super().loss(*inputs)


def list_configs() -> Iterator[TransformerXLConfig]:
    for kernel in KERNELS:
        for scheme in SCHEMES if kernel == "sdpa" else SCHEMES[:1]:
            yield replace(BASE, kernel=kernel, positions=scheme)
    for changes in OTHERS:
        yield replace(BASE, **changes)


def list_recipes() -> Iterator[TransformerXLConfig]:
    """Yield the networks of a text of one's own, with two layers each."""
    for network in LADDER:
        sizes = {name: getattr(network, name) for name in ("d_model", "n_head", "mem_len")}
        yield replace(BASE, n_token=4096, norm="pre", **sizes)


def main() -> None:
    # They would ask the CUDA runtime, which this PyTorch does not have.
    fake_tensor.init_gpu_context = lambda _: None
    F.scaled_dot_product_attention = attend_efficiently
    for name in ("cpu", "numpy"):
        setattr(torch.Tensor, name, keep_numbers(getattr(torch.Tensor, name)))
    sdpa.correct_backends = lambda _: nullcontext()
    for name in ("normal_", "uniform_", "zeros_", "kaiming_uniform_", "constant_"):
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    warnings.simplefilter("ignore")
    if sys.argv[1:] == ["--count"]:
        for name, n_token in {"enwik8_base": 256, "wt103_base": 267_735}.items():
            print(json.dumps(count_operators(name, n_token)))
        for has_ring in (False, True):
            print(json.dumps({"name": "a token", "operators": count_token(has_ring)}))
        print(json.dumps(count_update()))
        return
    count = 0
    for name, precision in PRECISIONS.items():
        weights, amp = precision
        recipes = list_recipes() if name == "bf16-mixed" else ()
        for config in chain(list_configs(), recipes):
            count += 1
            try:
                take_steps(config, *precision)
                has_keys = config.positions in RINGS and config.memory_source == "layer_below"
                if amp is None and has_keys and config.mem_len:
                    read_tokens(config, weights)
            # Any error is reported with its config; the other configs are still tried.
            except Exception:
                row = {"precision": name, "config": str(config), "error": traceback.format_exc()}
                print(json.dumps(row))
        count += 1
        try:
            take_own_steps(*precision)
        except Exception:
            print(json.dumps({"precision": name, "error": traceback.format_exc()}))
    print(count)


if __name__ == "__main__":
    main()
