"""Settings of causal language models of transformers 5 (extra hub), by which one is a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import convert_fields, require

if TYPE_CHECKING:
    from .transformers_network import HuggingFaceNetwork

FAMILIES = (
    "bamba", "falcon_h1", "gemma", "gemma2", "gemma3_text", "gpt_neox", "granite",
    "granitemoehybrid", "lfm2", "llama", "mamba2", "mistral", "olmo2", "olmo3", "olmo_hybrid",
    "phi3", "qwen2", "qwen3", "qwen3_next", "zamba2",
)  # fmt: skip
"""Families that the checker passes on a CPU (docs/huggingface.md)."""
OF_FLA = (
    "abc", "comba", "delta_net", "gated_deltanet", "gated_deltaproduct", "gla", "gsa", "hgrn",
    "hgrn2", "kda", "lightnet", "linear_attn", "mesa_net", "retnet", "rwkv6", "rwkv7",
)  # fmt: skip
"""Families of flash-linear-attention: they need a GPU, and have a cache of their own."""
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
"""Sizes of the default network."""


@dataclass(frozen=True)
class HuggingFaceConfig:
    """A causal language model of transformers 5, of a family whose cache can be a memory.

    Args:
        n_token: Vocabulary size V. The command line takes it from the text.
        model_type: Family: llama, qwen3, mamba2, ... (docs/huggingface.md).
        settings: Settings of the family, with the names of its config.json, as one mapping; what it
            leaves out has the defaults of transformers.
        mem_len: Tokens whose keys and values are kept; a recurrent state is, unless this is 0.
    """

    n_token: int = 256
    model_type: str = "llama"
    settings: dict = field(default_factory=lambda: dict(SMALL))
    mem_len: int = 128

    def __post_init__(self) -> None:
        convert_fields(self)
        require(self.n_token >= 1, "n_token", self.n_token, "at least 1")
        require(self.mem_len >= 0, "mem_len", self.mem_len, "0 (no memory) or more")
        self.check_family()

    def check_family(self) -> None:
        why = "docs/huggingface.md says why no others"
        if self.model_type in OF_FLA:
            why = "those of flash-linear-attention need a GPU, and have a cache of their own"
        expected = f"one of {', '.join(FAMILIES)} ({why})"
        require(self.model_type in FAMILIES, "model_type", self.model_type, expected)

    def build(self) -> HuggingFaceNetwork:
        """Return a new network with random weights."""
        # Here, because transformers is slow to import, and an extra.
        from .transformers_network import HuggingFaceNetwork, build_model

        return HuggingFaceNetwork(self, build_model(self.model_type, self.settings, self.n_token))
