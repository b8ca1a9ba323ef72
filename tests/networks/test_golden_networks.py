"""Networks in units equal the implementations of others, whose outputs are in tests/golden."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from txl_lightning import networks


@pytest.fixture
def read_golden(repository):
    def read(name):
        with np.load(repository / "tests" / "golden" / "networks" / f"{name}.npz") as file:
            arrays = {key: torch.tensor(file[key]) for key in file.files if key != "config"}
            config = json.loads(str(file["config"]))
        weights = {key[3:]: value for key, value in arrays.items() if key.startswith("sd.")}
        return config, weights, arrays

    return read


def load(net, weights):
    """Load weights by our names; the softmax of the others is not tied."""
    net.head.out.weight = nn.Parameter(weights.pop("to_logits"))
    missing, unexpected = net.load_state_dict(weights, strict=False)
    assert set(missing) <= {"head.out.weight", "norm.weight", "norm.bias"}
    assert not unexpected


def test_recurrent_memory_transformer_equals_another(read_golden):
    sizes, theirs, arrays = read_golden("recurrent_memory")
    net = networks.RecurrentMemoryTransformerConfig(
        n_token=13,
        n_layer=sizes["depth"],
        d_model=sizes["dim"],
        n_head=sizes["heads"],
        n_memory=sizes["num_memory_tokens"],
        unit_len=sizes["seq_len"],
    ).build()
    weights = {
        "to_logits": theirs["to_logits.weight"],
        "head.out.bias": theirs["to_logits.bias"],
        "embedding.weight": theirs["token_emb.weight"],
        "position_UD": theirs["pos_emb.weight"],
        "reading_RD": theirs["read_memory_emb"],
        "writing_RD": theirs["memory_tokens"],
        "norm.weight": theirs["norm.weight"],
    }
    for n in range(sizes["depth"]):
        attention = f"layers.{n}.0.branch"
        inner = f"layers.{n}.1.branch"
        to_q, to_kv = (theirs[f"{attention}.to_{name}.weight"] for name in ("q", "kv"))
        weights |= {
            f"layers.{n}.attention_norm.weight": theirs[f"{attention}.norm.weight"],
            f"layers.{n}.qkv.weight": torch.cat([to_q, to_kv]),
            f"layers.{n}.out.weight": theirs[f"{attention}.to_out.weight"],
            f"layers.{n}.inner_norm.weight": theirs[f"{inner}.0.weight"],
            f"layers.{n}.up.weight": theirs[f"{inner}.1.weight"],
            f"layers.{n}.down.weight": theirs[f"{inner}.4.weight"],
        }
    load(net, weights)
    with torch.no_grad():
        logits, memory = net(arrays["tokens"])
    torch.testing.assert_close(logits, arrays["logits"], rtol=1e-4, atol=1e-4)
    actual = memory.state_N[0]["memory_BRD"]
    torch.testing.assert_close(actual, arrays["memory"], rtol=1e-4, atol=1e-4)


def test_compressive_transformer_equals_another(read_golden):
    sizes, theirs, arrays = read_golden("compressive")
    net = networks.CompressiveTransformerConfig(
        n_token=13,
        n_layer=sizes["depth"],
        d_model=sizes["dim"],
        n_head=sizes["heads"],
        unit_len=sizes["seq_len"],
        n_state=sizes["mem_len"],
        n_compressed=sizes["cmem_len"],
        rate=sizes["cmem_ratio"],
    ).build()
    # The other one has none.
    net.norm = nn.Identity()
    weights = {
        "to_logits": theirs["to_logits.1.weight"],
        "head.out.bias": theirs["to_logits.1.bias"],
        "embedding.weight": theirs["token_emb.weight"],
        "position_HSK": theirs["pos_emb"],
    }
    names = {
        "attention_norm": "attn_layers.{}.fn.norm",
        "out": "attn_layers.{}.fn.fn.to_out",
        "inner_norm": "ff_layers.{}.fn.norm",
        "up": "ff_layers.{}.fn.fn.w1",
        "down": "ff_layers.{}.fn.fn.w2",
    }
    for n in range(sizes["depth"]):
        for ours, their_name in names.items():
            for part in ("weight", "bias"):
                weights[f"layers.{n}.{ours}.{part}"] = theirs[f"{their_name.format(n)}.{part}"]
        attention = f"attn_layers.{n}.fn.fn"
        conv = f"{attention}.compress_mem_fn.conv"
        weights |= {
            f"layers.{n}.q.weight": theirs[f"{attention}.to_q.weight"],
            f"layers.{n}.kv.weight": theirs[f"{attention}.to_kv.weight"],
            f"layers.{n}.compression.weight": theirs[f"{conv}.weight"].mT.flatten(1),
            f"layers.{n}.compression.bias": theirs[f"{conv}.bias"],
        }
    load(net, weights)
    memory = net.train().empty_memory(3)
    full = {
        "0.h_BNMD": arrays["first_memory"].transpose(0, 1),
        "0.compressed_BNCD": arrays["first_compressed"].transpose(0, 1),
        "1.n_read_B": torch.full((3,), 99),
    }
    memory = memory.restore(memory.tensors() | full)
    logits = []
    lost = []
    with torch.no_grad():
        for unit in arrays["tokens"].split(sizes["seq_len"], 1):
            part, memory = net(unit, memory)
            logits.append(part)
            lost.append(memory.state_N[0]["lost_B"].mean())
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(torch.cat(logits, 1), arrays["logits"], **close)
    torch.testing.assert_close(torch.stack(lost), arrays["lost"], **close)
    state = memory.state_N[0]
    torch.testing.assert_close(state["h_BNMD"].transpose(0, 1), arrays["memory"], **close)
    compressed = state["compressed_BNCD"].transpose(0, 1)
    torch.testing.assert_close(compressed, arrays["compressed"], **close)
