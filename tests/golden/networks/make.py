"""Write the golden outputs of networks by the implementations of others.

In an environment with compressive-transformer-pytorch 0.4.0 and
recurrent-memory-transformer-pytorch 0.7.0: python make.py. Only numbers are kept.
"""

import json
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
N_TOKEN = 13


def randomize(net):
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in net.parameters():
            weight += 0.2 * torch.randn_like(weight)


def save(name, config, net, **values):
    weights = {f"sd.{key}": value.numpy() for key, value in net.state_dict().items()}
    arrays = {key: value.detach().numpy() for key, value in values.items()}
    np.savez_compressed(HERE / f"{name}.npz", config=json.dumps(config), **weights, **arrays)


def make_recurrent_memory():
    """Plain residual sums, no mixing of values, no null key; memory is read and written over."""
    from recurrent_memory_transformer_pytorch import RecurrentMemoryTransformer

    sizes = {"dim": 12, "depth": 2, "num_memory_tokens": 3, "seq_len": 5, "dim_head": 6, "heads": 2}
    options = {"use_xl_memories": False, "num_residual_streams": 1, "emb_gradient_frac": 1.0}
    net = RecurrentMemoryTransformer(
        num_tokens=N_TOKEN, add_write_to_next_write_mem=True, always_have_read_memories=False,
        **sizes, **options,
    ).eval()  # fmt: skip
    randomize(net)
    for layer, _ in net.layers:
        attention = getattr(layer, "branch", layer)
        if attention.learned_value_residual_mix is not None:
            attention.learned_value_residual_mix = ReturnZero()
        attention.attend = LeaveOutFirstKey(attention.attend)
    tokens = torch.randint(N_TOKEN, (2, 17))
    memory = None
    logits = []
    for unit in tokens.split(5, dim=1):
        part, written, _ = net(unit, memory)
        logits.append(part)
        memory = written if unit.size(1) == 5 else memory
    save("recurrent_memory", sizes, net, tokens=tokens, logits=torch.cat(logits, 1), memory=memory)


class ReturnZero(torch.nn.Module):
    def forward(self, x):
        return torch.zeros(())


class LeaveOutFirstKey(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, q, k, v, mask):
        return self.attend(q, k[:, :, 1:], v[:, :, 1:], mask=mask[..., 1:])


def make_compressive():
    """Residual sums in place of gates. Memories are full at first, as their positions grow."""
    from compressive_transformer_pytorch import CompressiveTransformer

    lengths = {"seq_len": 4, "mem_len": 4, "cmem_len": 6, "cmem_ratio": 2}
    sizes = {"dim": 12, "depth": 2, "heads": 2} | lengths
    options = {"gru_gated_residual": False, "enhanced_recurrence": False}
    net = CompressiveTransformer(num_tokens=N_TOKEN, **sizes, **options).train()
    randomize(net)
    memory = first = torch.randn(2, 3, 4, 12), torch.randn(2, 3, 6, 12)
    tokens = torch.randint(N_TOKEN, (3, 12))
    logits = []
    lost = []
    for unit in tokens.split(4, dim=1):
        part, memory, loss = net(unit, memory)
        logits.append(part)
        lost.append(loss)
    save(
        "compressive", sizes, net, tokens=tokens, logits=torch.cat(logits, 1),
        lost=torch.stack(lost), first_memory=first[0], first_compressed=first[1],
        memory=memory[0], compressed=memory[1],
    )  # fmt: skip


if __name__ == "__main__":
    make_recurrent_memory()
    make_compressive()
