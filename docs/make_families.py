"""Write the table of families of transformers in docs/huggingface.md: which the checker passes.

    python docs/make_families.py

It needs transformers 5 (extra hub). tests/hub/test_huggingface.py compares the page with a new one.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from txl_lightning.model.contract_check import check_network, draw_tokens, randomize_copy
from txl_lightning.networks.transformers_config import HuggingFaceConfig
from txl_lightning.networks.transformers_network import HuggingFaceNetwork

PAGE = Path(__file__).with_name("huggingface.md")
TABLE = re.compile(r"(?<=<!-- results: families -->\n).*?(?=<!-- end of results -->)", re.DOTALL)
HEAD = "| family | its memory | on a CPU |\n|---|---|---|\n"
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
PLAIN = WIDTHS | {"num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = PLAIN | {"num_key_value_heads": 2}
WINDOW = {"sliding_window": 12}
FEW = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
OLD = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
OLD |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
HEADS = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
DELTA = {"linear_num_value_heads": 2, "linear_num_key_heads": 2}
DELTA |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_hidden_layers": 4}
CANDIDATES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED | WINDOW,
    "qwen2": GROUPED | {"use_sliding_window": True, "max_window_layers": 1} | WINDOW,
    "qwen3": GROUPED,
    "gemma": GROUPED | {"head_dim": 8},
    "gemma2": GROUPED | {"head_dim": 8} | WINDOW,
    "gemma3_text": GROUPED | {"head_dim": 8} | FEW,
    "olmo2": GROUPED,
    "olmo3": GROUPED | FEW,
    "phi3": GROUPED,
    "granite": GROUPED,
    "gpt_neox": PLAIN,
    "lfm2": GROUPED | {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": GROUPED | DELTA | {"head_dim": 8, "num_experts": 0},
    "olmo_hybrid": GROUPED | DELTA,
    "mamba2": MAMBA | {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1}
    | {"chunk_size": 5},
    "bamba": GROUPED | HEADS | {"attn_layer_indices": [1], "mamba_chunk_size": 5},
    "granitemoehybrid": GROUPED | HEADS | {"layer_types": ["mamba", "attention"]}
    | {"num_local_experts": 0, "shared_intermediate_size": 48, "mamba_chunk_size": 5},
    "falcon_h1": GROUPED | HEADS | {"mamba_d_ssm": 64, "mamba_chunk_size": 5},
    "zamba2": GROUPED | {"layer_types": ["mamba", "hybrid"], "hybrid_layer_ids": [1]}
    | {"adapter_rank": 4, "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_ngroups": 1},
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "jamba": GROUPED | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4}
    | {"num_experts": 1, "num_experts_per_tok": 1},
    "recurrent_gemma": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    | {"num_attention_heads": 4, "lru_width": 32, "attention_window_size": 12},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2},
    "xlstm": {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "gpt2": OLD,
    "gptj": OLD | {"rotary_dim": 4},
}  # fmt: skip
"""Small settings of each family that is checked."""
FAR = 1000  # tokens, more than any table of positions above has


@dataclass(frozen=True)
class Candidate(HuggingFaceConfig):
    """A family that may not be one of FAMILIES."""

    def check_family(self) -> None:
        pass


def make_table() -> str:
    """Return the table of all candidates."""
    rows = [f"| `{name}` | {' | '.join(describe_family(name))} |\n" for name in CANDIDATES]
    return HEAD + "".join(rows)


def describe_family(name: str) -> tuple[str, str]:
    """Return the memory of a family, and "yes", or why it is refused."""
    try:
        net = build_candidate(name)
        check_family(net)
    except ValueError as error:
        reason = str(error).removeprefix("network: ").partition("; docs/")[0]
        return "-", f"no: {reason}"
    parts = {"keys and values": net.layout.has_keys, "states": net.layout.has_states}
    return " and ".join(part for part in parts if parts[part]), "yes"


def build_candidate(name: str) -> HuggingFaceNetwork:
    torch.manual_seed(0)
    settings = CANDIDATES[name]
    return Candidate(n_token=13, model_type=name, settings=settings, mem_len=20).build()


def check_family(net: HuggingFaceNetwork) -> None:
    """Raise ValueError if a network cannot be one here: after `check_network`, in training mode,
    and at positions far from the start."""
    check_network(net)
    net = randomize_copy(net)
    first_BL, second_BL = draw_tokens(net, 8).chunk(2, dim=1)
    _, memory = net(first_BL)
    before = {name: each.clone() for name, each in memory.tensors().items()}
    expected_BLV, _ = net(second_BL, memory)
    require_near(net.train()(second_BL, memory)[0], expected_BLV, "other logits in training mode")
    try:
        net.loss(second_BL[:, :1], first_BL[:, :1], memory)[0].sum().backward()
    except RuntimeError as error:
        raise ValueError("the gradient of a single token fails") from error
    for name, each in memory.tensors().items():
        require_near(each, before[name], "a memory is changed by the call that reads it")
    empty = net.eval().empty_memory(len(first_BL))
    try:
        _, far = net(first_BL, replace(empty, position_B=empty.position_B + FAR))
        second_BLV, _ = net(second_BL, far)
    except (IndexError, RuntimeError) as error:
        raise ValueError("positions end with those of a table") from error
    require_near(second_BLV, expected_BLV, "positions count, and not distances alone")


def require_near(actual: torch.Tensor, expected: torch.Tensor, problem: str) -> None:
    # Rotations are computed in float32.
    if not torch.allclose(actual, expected, rtol=1e-3, atol=1e-3):
        raise ValueError(problem)


if __name__ == "__main__":
    table = make_table()
    PAGE.write_text(TABLE.sub(lambda _: table, PAGE.read_text()))
