"""export: a network as a program that needs no txl_lightning, with the memory in and out.

B rows   L segment   M in memory   N layers   D width   V vocabulary
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..checkpoints import load_checkpoint
from ..errors import require_positive
from ..files import require_local_path, write_text
from ..model import EvalLengths, Memory, TransformerXL
from ..model.config import ContextLengths, require_transformer_xl
from ..model.kernels import KERNELS
from ..model.memory import count_filled
from ..runs.folder import VOCAB
from .card import list_facts, write_card
from .convert import fill_folder, require_fillable


def export_command(
    ckpt_path: str,
    to: Literal["pt2", "onnx"] = "onnx",
    out: str = "exported",
    mem_len: int | None = None,
    max_batch: int = 64,
    max_tgt_len: int = 512,
) -> None:
    """Write a network as a program for torch alone (pt2), or for ONNX Runtime (onnx).

    Tokens and memory go in, logits and memory come out. Its README.md shows how to call it.

    Args:
        ckpt_path: A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.
        to: pt2, for torch.export.load; or onnx, which needs the extra export.
        out: The folder to write: new, or empty.
        mem_len: States remembered; left out, as in training.
        max_batch: Most rows.
        max_tgt_len: Most tokens in a segment.
    """
    folder = require_local_path("out", out)
    require_fillable(folder)
    # Not packed for a CPU, as those of `load_model`: such weights cannot be exported.
    model, vocab = (checkpoint := load_checkpoint(ckpt_path)).build()
    require_transformer_xl(model, "ckpt_path", ckpt_path)
    lengths = EvalLengths(mem_len).resolve(model.config)
    program = export_program(model.float(), lengths, max_batch, max_tgt_len)
    facts = list_facts(model, vocab, checkpoint)
    facts["Memory"] = f"{lengths.mem_len:,} hidden states of each layer"
    facts["Limits"] = f"{max_batch:,} rows, {max_tgt_len:,} tokens in a segment"
    shape = f"({model.config.n_layer}, 1, {lengths.mem_len}, {model.config.d_model})"

    def write_folder(folder: Path) -> None:
        write_program(program, folder, to)
        write_text(vocab.to_json(), folder / VOCAB)
        kind = json.loads(vocab.to_json())["kind"]
        write_card(folder, Path(out).resolve().name, to, facts, shape, kind)

    fill_folder(folder, write_folder)
    print(f"{out}: {', '.join(sorted(os.listdir(out)))}")


class TensorProgram(nn.Module):
    """The network as a function of tensors alone."""

    def __init__(self, net: TransformerXL, lengths: ContextLengths) -> None:
        super().__init__()
        self.net = net.requires_grad_(False)
        self.lengths = lengths
        for layer in net.layers:
            # Of the fast kernels, the one that can be traced with sizes that vary.
            layer.attention.attend = KERNELS["sdpa"]

    def forward(self, tokens: Tensor, memory: Tensor, filled: Tensor) -> tuple[Tensor, ...]:
        logits_BLV, after = self.net(tokens, SlicedMemory(memory, filled, *self.lengths[1:]))
        return logits_BLV, after.h_NBMD, after.filled_B


class SlicedMemory(Memory):
    """A memory that is updated alike for segments shorter and longer than itself."""

    def update(self, states: list[Tensor], mask_BLS: Tensor, n_reread: int = 0) -> Memory:
        # The last M of [m o h], without a branch on L; it copies more than Memory does.
        h_NBSD = torch.cat([self.h_NBMD, torch.stack(states)], dim=2)
        filled_B = count_filled(self.filled_B, mask_BLS, n_reread, self.mem_len)
        h_NBMD = h_NBSD.narrow(2, mask_BLS.size(1) - n_reread, self.mem_len)
        return replace(self, h_NBMD=h_NBMD, filled_B=filled_B)


def export_program(
    net: TransformerXL, lengths: ContextLengths, max_batch: int, max_tgt_len: int
) -> ExportedProgram:
    """Return the network as a graph for any number of rows and tokens up to the limits."""
    require_positive(max_batch=max_batch, max_tgt_len=max_tgt_len, mem_len=lengths.mem_len)
    rows = Dim("rows", min=1, max=max_batch) if max_batch > 1 else None
    tokens = Dim("tokens", min=1, max=max_tgt_len) if max_tgt_len > 1 else None
    # Sizes 0 and 1 would be taken for constants.
    B = min(max_batch, 2)
    L = min(max_tgt_len, 3)
    memory_NBMD = torch.zeros(net.config.n_layer, B, lengths.mem_len, net.config.d_model)
    example = torch.zeros(B, L, dtype=torch.long), memory_NBMD, torch.zeros(B, dtype=torch.long)
    shapes = {0: rows, 1: tokens}, {1: rows}, {0: rows}
    # Decomposed for ONNX, the other backends' results have strides that the graph does not expect.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), silence_exporters():
        return torch.export.export(TensorProgram(net, lengths), example, dynamic_shapes=shapes)


@contextmanager
def silence_exporters() -> Iterator[None]:
    """Ignore what the exporters tell their own developers."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)


def write_program(program: ExportedProgram, folder: Path, to: str) -> None:
    if to == "pt2":
        torch.export.save(program, folder / "model.pt2")
        return
    import onnxscript  # noqa: F401  torch's own message does not say what to install

    with sdpa_kernel(SDPBackend.MATH), silence_exporters():
        names = ["logits", "next_memory", "next_filled"]
        onnx = torch.onnx.export(program, output_names=names, verbose=False)
    onnx.save(folder / "model.onnx")
