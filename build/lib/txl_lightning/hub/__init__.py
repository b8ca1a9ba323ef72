"""Transformer-XL for transformers 5 (extra hub): importing this package registers the Auto classes.

    import txl_lightning.hub
    model = transformers.AutoModelForCausalLM.from_pretrained("big")

Only tensors and JSON are read; no code in a folder is run. harness.py (extra lm-eval) registers
the model "txl" with lm-evaluation-harness.
"""

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from .causal_lm import MemoryCache, TransfoXLConfig, TransfoXLLMHeadModel, TXLConfig, TXLForCausalLM
from .tokenizer import TXLTokenizer

__all__ = [
    "MemoryCache", "TXLConfig", "TXLForCausalLM", "TXLTokenizer", "TransfoXLConfig",
    "TransfoXLLMHeadModel",
]  # fmt: skip

for network in (TXLForCausalLM, TransfoXLLMHeadModel):
    AutoConfig.register(network.config_class.model_type, network.config_class)
    AutoModelForCausalLM.register(network.config_class, network)
    AutoTokenizer.register(network.config_class, TXLTokenizer)
