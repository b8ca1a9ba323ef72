"""Networks of the original code: their outputs, and what is refused."""

from pathlib import Path

import pytest
import torch

from txl_lightning import TransformerXL
from txl_lightning.convert import load_original
from txl_lightning.convert.original import config_from_original
from txl_lightning.convert.weight_names import from_original, to_original
from txl_lightning.model.kernels import KERNELS

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "original").glob("*.npz"))
ARGS = {
    "n_token": 7, "n_layer": 1, "n_head": 2, "d_model": 4, "d_head": 2, "d_inner": 6, "mem_len": 3,
    "tie_weight": True, "div_val": 1, "attn_type": 0, "clamp_len": -1, "pre_lnorm": False,
}  # fmt: skip


OPTIONS = """
    adaptive affinity amp apex_amp_opt_level append_dataset append_time batch_chunk batch_size clip
    clip_nonemb config config_file cuda data dataset debug decay_rate dist_backend dist_url
    distributed dllog_file dynamic_loss_scale emb_init emb_init_range eta_min eval_batch_size
    eval_interval eval_max_steps eval_tgt_len finetune_v2 finetune_v3 fp16 gpu0_bsz init init_range
    init_std local_batch_size local_rank log_all_ranks log_interval lr lr_min max_eval_steps
    max_step max_step_scheduler mom multi_gpu n_all_param n_nonemb_param no_env no_eval not_tied
    optim patience profile proj_init_std restart restart_dir roll save_all scheduler seed
    static_loss_scale swap_mem target_perplexity target_throughput tied txtlog_file varlen vocab
    warmup_step weight_decay work_dir
"""
"""What the original's train.py and NVIDIA's have beside the constructor's keywords."""


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request, golden_of):
    return golden_of(f"original/{request.param.stem}")


@pytest.fixture
def weights_and_args(golden_of):
    def open_golden(name):
        golden = golden_of(f"original/{name}")
        return golden.weights, golden.args

    return open_golden


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_it_gives_what_the_original_gives(golden, kernel):
    net = load_original(golden.weights, golden.args)
    for layer in net.layers:
        layer.attention.attend = KERNELS[kernel]
    golden.check(net)


def test_every_tensor_goes_there_and_back(golden):
    config = load_original(golden.weights, golden.args).config
    ours = from_original(golden.weights, config)
    assert ours.keys() == TransformerXL(config).state_dict().keys()
    theirs = to_original(ours, config)
    assert theirs.keys() == golden.weights.keys() - {"pos_emb.inv_freq"}
    for name, tensor in theirs.items():
        # Of a learned table, the original may hold more rows than clamp_len lets it use.
        expected = golden.weights[name]
        used = expected if tensor.shape == expected.shape else expected[:, -tensor.size(1) :]
        assert torch.equal(tensor, used), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"attn_type": 4}, "attn_type: invalid 4; expected 0, 1, 2 or 3"),
        ({"attn_type": "0"}, "attn_type: invalid '0'"),
        ({"attn_type": [0]}, r"attn_type: invalid \[0\]"),
        ({"pre_lnorm": "false"}, "pre_lnorm: invalid 'false'; expected true or false"),
        ({"same_length": "false"}, "same_length: invalid 'false'"),
        ({"cutoffs": "3,5"}, "cutoffs: invalid '3,5'; expected a list"),
        ({"cutoffs": ["3", "5"]}, r"cutoffs: invalid \['3', '5'\]"),
        ({"tie_projs": "false"}, "tie_projs: invalid 'false'"),
        ({"clamp_len": "3"}, "clamp_len: invalid '3'; expected a number"),
        ({"attn_type": 1, "mem_len": 0}, "tgt_len: invalid None; expected given"),
        (
            {"attn_type": 3, "d_head": 3},
            r"d_head: invalid 3; .* \(4 / 2\), as attn_type is 3",
        ),
        ({"clamp_length": 2}, "args: clamp_length is no keyword; it must be clamp_len$"),
        ({"same_lenght": True}, "args: same_lenght is no keyword; it must be same_length$"),
    ],
)
def test_a_keyword_that_cannot_be_is_named(change, said):
    with pytest.raises(ValueError, match=said):
        config_from_original(ARGS | change)


def test_keywords_without_which_there_is_no_network_are_named():
    with pytest.raises(ValueError, match="args: n_head, mem_len missing"):
        config_from_original(
            {key: ARGS[key] for key in ARGS if key != "n_head"} | {"mem_len": None}
        )


def test_a_keyword_that_is_null_is_as_if_left_out():
    nulls = dict.fromkeys(["clamp_len", "cutoffs", "same_length", "pre_lnorm", "tgt_len", "dtype"])
    assert config_from_original(ARGS | nulls) == config_from_original(ARGS)


def test_all_options_of_their_train_py_are_taken():
    others = OPTIONS.split()
    assert config_from_original(ARGS | dict.fromkeys(others, 1)) == config_from_original(ARGS)


@pytest.mark.parametrize("kind", [1, 3])
def test_a_table_of_learned_positions_may_have_one_row(kind):
    config = config_from_original(ARGS | {"attn_type": kind}, torch.zeros(1, 1, 2, 2))
    assert config.clamp_len == 0
    ours = TransformerXL(config).state_dict()
    args = ARGS | {"attn_type": kind, "mem_len": 3}
    again = load_original(to_original(ours, config), args)
    assert again.empty_memory(1).clamp_len == again.empty_cache(1).clamp_len == 0
    tokens = torch.randint(7, (2, 1, 5))
    _, memory = again.nats(*tokens, again.empty_memory(1))
    assert again.nats(*tokens, memory)[0].isfinite().all()


def test_clamp_len_1_of_learned_positions_leaves_one_row():
    args = ARGS | {"attn_type": 1, "clamp_len": 1, "tgt_len": 4}
    assert config_from_original(args).clamp_len == 0


def test_missing_foreign_and_misshapen_tensors_are_named(weights_and_args):
    weights, args = weights_and_args("a_default")
    with pytest.raises(ValueError, match=r"missing: .*crit\.out_layers\.0\.bias"):
        load_original({"word_emb.emb_layers.0.weight": torch.zeros(7, 4)}, ARGS)
    with pytest.raises(ValueError, match=r"state_dict: left over: extra$"):
        load_original(weights | {"extra": torch.zeros(1)}, args)
    name = "crit.out_layers.0.bias"
    for wrong in (torch.zeros(1), weights[name].long(), torch.zeros(())):
        said = rf"{name}: invalid \[.*it must be \[{len(weights[name])}\] of floating point"
        with pytest.raises(ValueError, match=said):
            load_original(weights | {name: wrong}, args)


def test_what_is_tied_may_be_left_out_and_must_be_the_same(weights_and_args):
    weights, args = weights_and_args("adaptive_div4_prenorm")
    tied = {"crit.out_layers.1.weight": "word_emb.emb_layers.1.weight"}
    tied |= {"crit.out_projs.2": "word_emb.emb_projs.2"}
    whole = load_original(weights, args).state_dict()
    short = load_original({n: weights[n] for n in weights if n not in tied}, args).state_dict()
    assert all(torch.equal(whole[name], short[name]) for name in whole)
    for name, source in tied.items():
        with pytest.raises(ValueError, match=f"{name} is not {source}"):
            load_original(weights | {name: weights[name] + 1}, args)
    with pytest.raises(ValueError, match=r"missing: crit\.out_projs\.0$"):
        load_original({n: weights[n] for n in weights if n != "crit.out_projs.0"}, args)


def test_the_precision_of_the_weights_is_kept(weights_and_args):
    weights, args = weights_and_args("a_default")
    net = load_original({name: weights[name].double() for name in weights}, args)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float64}
