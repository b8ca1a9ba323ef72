"""A new Recurrent Memory Transformer has memory tokens that are told apart."""

import pytest
import torch
from torch.nn import functional as F

from txl_lightning.networks import RecurrentMemoryTransformerConfig

U = 16


@pytest.fixture
def net():
    torch.manual_seed(0)
    config = RecurrentMemoryTransformerConfig(n_token=64, d_model=64, unit_len=U, n_memory=8)
    return config.build()


def test_all_embeddings_begin_equally_wide(net):
    width = net.embedding.weight.std()
    for table in (net.position_UD, net.reading_RD, net.writing_RD):
        torch.testing.assert_close(table.std(), width, rtol=0.1, atol=0)


def test_what_a_new_network_writes_differs_from_one_memory_token_to_another(net):
    _, memory = net(torch.randint(64, (4, 2 * U)))
    memory_BRD = memory.state_N[0]["memory_BRD"]
    similarity_BRR = F.cosine_similarity(memory_BRD[:, :, None], memory_BRD[:, None], dim=-1)
    n_memory = memory_BRD.size(1)
    others = similarity_BRR.sum() - similarity_BRR.diagonal(dim1=1, dim2=2).sum()
    assert others / (len(memory_BRD) * n_memory * (n_memory - 1)) < 0.8
