"""Tests that need a GPU: python -m pytest -m gpu."""

import pytest
import torch
from lightning.pytorch import Callback

from txl_lightning import Adaptation, generate, stream_nats
from txl_lightning.model import EvalLengths
from txl_lightning.model.kernels import KERNELS
from txl_lightning.model.reading import Reader
from txl_lightning.model.ring import CapturedDecoder

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:::torch")]


class NeverWait(Callback):
    """After the first step, make waiting for the GPU an error."""

    def on_train_batch_end(self, *_):
        torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, *_):
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def waits_again():
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("waits_again")
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_step_synchronizes_the_gpu_if_nothing_is_logged(
    make_model, make_data, make_trainer, kernel
):
    options = {"precision": "bf16-mixed", "log_every_n_steps": 100, "gradient_clip_val": 0.25}
    # Not with `fit`, whose record reads every loss.
    trainer = make_trainer(
        accelerator="gpu", callbacks=[NeverWait()], limit_val_batches=0, **options
    )
    trainer.fit(make_model(d_model=32, kernel=kernel), datamodule=make_data())
    assert trainer.global_step == trainer.max_steps


@pytest.mark.parametrize("after", [False, True])
def test_a_checkpoint_has_the_random_numbers_of_the_gpu_also_after_training(fit, tmp_path, after):
    """Lightning has moved the weights to the CPU then."""
    options = {"accelerator": "gpu", "precision": "bf16-mixed"}
    net = {"d_model": 32, "dropout": 0.2, "optim": {"schedule": "constant"}}
    whole = fit(net, max_steps=6, **options)
    path = tmp_path / "a.ckpt"
    first = fit(net, max_steps=3, save=(None, None) if after else (path, 3), **options)
    if after:
        first.trainer.save_checkpoint(path)
    resumed = fit(net, ckpt_path=path, max_steps=6, **options)
    assert resumed.losses == pytest.approx(whole.losses[3:], rel=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("starts", [(0, 0, 0), (0, 5, 70)], ids=["even", "documents"])
@torch.inference_mode()
def test_tokens_read_by_a_graph_are_those_without(make_net, dtype, tolerance, starts):
    net = make_net(d_model=32).to("cuda", dtype)
    tokens_BL = torch.randint(11, (3, 100), device="cuda")
    doc_pos_BL = torch.arange(100) - torch.tensor(starts)[:, None]
    doc_pos_BL = torch.where(doc_pos_BL < 0, torch.arange(100), doc_pos_BL).cuda()
    logits = []
    for reader in (Reader(net), CapturedDecoder(net, Adaptation())):
        memory = reader.empty_memory(3, EvalLengths(37))
        parts = []
        for n in range(100):
            column = slice(n, n + 1)
            h_B1D, memory = reader.hidden(tokens_BL[:, column], memory, doc_pos_BL[:, column])
            parts.append(reader.head(h_B1D).float())
        logits.append(torch.cat(parts, dim=1))
    torch.testing.assert_close(*logits, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("mem_len", [0, 37])
def test_nats_of_a_text_read_by_graphs_are_those_without(make_net, dtype, tolerance, mem_len):
    net = make_net(d_model=32).to("cuda", dtype)
    ids = torch.randint(11, (303,))
    lengths = {"batch_size": 3, "tgt_len": 16, "mem_len": mem_len}
    nats = [stream_nats(net, ids, **lengths, cuda_graph=use) for use in (False, True)]
    torch.testing.assert_close(*nats, rtol=0, atol=tolerance)


@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1, 2, 3], [4]]], ids=["one", "padded"])
def test_text_generated_by_graphs_is_that_without(make_net, prompts):
    net = make_net(mem_len=9).cuda()
    texts = [generate(net, prompts, 40, seed=1, cuda_graph=use) for use in (False, True)]
    assert texts[0] == texts[1]
