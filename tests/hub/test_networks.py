"""Networks equal transformers' own torch implementations, with the same weights."""

import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, OlmoHybridConfig, Qwen3NextConfig
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from txl_lightning import networks
from txl_lightning.networks.gated_delta_net import GatedDelta

pytestmark = pytest.mark.slow
FAR = 1 << 30  # a document that began long ago
SIZES = {"d_model": 12, "n_head": 2, "d_key": 5, "d_value": 7, "chunk_len": 6}
THEIR_SIZES = {
    "hidden_size": 12,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "linear_conv_kernel_dim": 4,
    "num_hidden_layers": 4,
}
"""Of a layer of Gated DeltaNet, by our names and by those of transformers."""


@pytest.fixture(autouse=True)
def fix_seed():
    torch.manual_seed(0)


@torch.no_grad()
def randomize(module):
    """Change initial weights that are zeros, ones or equal."""
    for parameter in module.parameters():
        parameter += 0.2 * torch.randn_like(parameter)
    return module.eval()


def join_mixer(mixer):
    """Return our weights of a mixer of Mamba-2 by transformers' names."""
    x_bc = mixer.xbc.weight
    return {
        "in_proj.weight": torch.cat([mixer.gate.weight, x_bc, mixer.step.weight]),
        "conv1d.weight": mixer.conv_XW[:, None],
        "conv1d.bias": mixer.conv_bias_X,
        "dt_bias": mixer.step_bias_H,
        "A_log": mixer.log_rate_H,
        "D": mixer.skip_H,
        "norm.weight": mixer.norm.weight,
        "out_proj.weight": mixer.out.weight,
    }


def test_mamba2_equals_that_of_transformers():
    sizes = {"expand": 2, "n_groups": 1, "conv_kernel": 4, "chunk_size": 8, "use_bias": False}
    theirs = Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=13,
            hidden_size=16,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=8,
            state_size=6,
            tie_word_embeddings=True,
            residual_in_fp32=False,
            **sizes,
        )
    ).eval()
    config = networks.Mamba2Config(
        n_token=13, n_layer=2, d_model=16, d_head=8, d_state=6, chunk_len=5
    )
    net = randomize(config.build())
    torch.nn.init.zeros_(net.head.out.bias)
    weights = {
        "backbone.embeddings.weight": net.embedding.weight,
        "backbone.norm_f.weight": net.norm.weight,
        "lm_head.weight": net.embedding.weight,
    }
    for n, layer in enumerate(net.layers):
        weights[f"backbone.layers.{n}.norm.weight"] = layer.norm.weight
        names = join_mixer(layer.mixer)
        weights |= {f"backbone.layers.{n}.mixer.{name}": names[name] for name in names}
    theirs.load_state_dict(weights)
    tokens = torch.randint(13, (2, 21))
    with torch.no_grad():
        torch.testing.assert_close(net(tokens)[0], theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def join_heads(parts, n_head):
    """Return rows in transformers' order: all of the first head, then of the second."""
    return torch.cat([part.unflatten(0, (n_head, -1)) for part in parts], 1).flatten(0, 1)


def test_gated_delta_net_equals_that_of_transformers():
    theirs = Qwen3NextGatedDeltaNet(
        Qwen3NextConfig(**THEIR_SIZES),
        layer_idx=0,
    ).eval()
    delta = randomize(GatedDelta(networks.GatedDeltaNetConfig(**SIZES)))
    qkvz = [*delta.qkv.weight.split(delta.widths), delta.gate.weight]
    theirs.load_state_dict(
        {
            "in_proj_qkvz.weight": join_heads(qkvz, 2),
            "in_proj_ba.weight": join_heads([delta.write.weight, delta.decay.weight], 2),
            "conv1d.weight": delta.conv_XW[:, None],
            "dt_bias": delta.decay_bias_H,
            "A_log": delta.log_rate_H,
            "norm.weight": delta.norm.weight,
            "out_proj.weight": delta.out.weight,
        }
    )
    assert_equal_mixing(delta, theirs)


@pytest.mark.parametrize("allowed", [True, False])
def test_gated_delta_net_equals_that_of_olmo_with_and_without_negative_eigenvalues(allowed):
    theirs = OlmoHybridGatedDeltaNet(
        OlmoHybridConfig(**THEIR_SIZES, linear_allow_neg_eigval=allowed),
        layer_idx=0,
    ).eval()
    config = networks.GatedDeltaNetConfig(**SIZES, allow_neg_eigval=allowed)
    delta = randomize(GatedDelta(config))
    q, k, v = delta.qkv.weight.split(delta.widths)
    theirs.load_state_dict(
        {
            "q_proj.weight": q,
            "k_proj.weight": k,
            "v_proj.weight": v,
            "g_proj.weight": delta.gate.weight,
            "b_proj.weight": delta.write.weight,
            "a_proj.weight": delta.decay.weight,
            "conv1d.weight": delta.conv_XW[:, None],
            "dt_bias": delta.decay_bias_H,
            "A_log": delta.log_rate_H,
            "o_norm.weight": delta.norm.weight,
            "o_proj.weight": delta.out.weight,
        }
    )
    delta.norm.eps = theirs.o_norm.variance_epsilon
    assert_equal_mixing(delta, theirs)


@torch.no_grad()
def assert_equal_mixing(delta, theirs):
    x = torch.randn(3, 21, 12)
    y, _ = delta(x, delta.empty_state(3), torch.full((3, 21), FAR))
    torch.testing.assert_close(y, theirs(x), rtol=1e-4, atol=1e-5)
