"""What can be known of the kernels of flash.py without a GPU?

    TRITON_INTERPRET=1 python -m experiments.gpu.flash_offline   # are they right?
    python -m experiments.gpu.flash_offline                      # what do they need on an H100?

Both need triton (`pip install triton`, 190 MB). The first runs the kernels in Triton's
interpreter, on a CPU; not in bfloat16, whose products are wrong there (triton 3.9). The second
compiles them for sm_90. Each finding is a line of JSON.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from experiments.gpu import correctness, flash
from experiments.gpu.correctness import Case
from experiments.gpu.speed import load_published
from txl_lightning.model.memory import KeysValues, Mask
from txl_lightning.model.positions import DistanceTerms

CASES = [Case(L, M, "rvu", 41) for L in (1, 7, 65) for M in (0, 5, 130)]
CASES += [Case(7, 130, terms, 64) for terms in ("rvub", "ub", "r", "")]
CASES += [Case(65, 130, "rvub", 64, same) for same in ("mem_len", "mem_len+1")]
CASES += [Case(150, 10, "rvu", 64), Case(9, 9, "rvub", 128)]
NETWORKS = ("paper/enwik8_base", "paper/enwik8_large")


def attend_alone(
    q_BLHK: Tensor, kv_BS2HK: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Attend for each row and head alone, as a network of one head with one row does."""
    (B, _, H, _) = q_BLHK.shape
    rows = []
    for row in (slice(b, b + 1) for b in range(B)):
        heads = []
        for head in (slice(h, h + 1) for h in range(H)):
            own = DistanceTerms(
                r_THK=terms.r_THK[:, head], u_HK=terms.u_HK[head], v_HK=terms.v_HK[head]
            )
            inputs = q_BLHK[row, :, head], kv_BS2HK[row, :, :, head]
            heads.append(flash.attend(*inputs, own, Mask(mask.mask_BLS[row]), dropatt))
        rows.append(torch.cat(heads, dim=2))
    return torch.cat(rows)


def interpret() -> Iterator[dict[str, Any]]:
    """Yield the differences of each case from the reference, as correctness.py defines them."""
    runs = [(flash.attend, torch.float32, CASES), (attend_alone, torch.float32, CASES[4:5])]
    # These have the tiles of a GPU.
    runs += [(flash.attend, torch.float16, [CASES[8], *CASES[-2:]])]
    # Then memory that no kernel writes is NaN.
    torch.use_deterministic_algorithms(True)
    for attend, dtype, cases in runs:
        for case, found in correctness.kernel_differences(attend, dtype, "cpu", cases):
            yield {"kernel": attend.__name__, "dtype": str(dtype), "case": case, "found": found}


class Target:
    """An H100 or H200 for Triton, which asks its driver for no more than this to compile."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_for_target() -> Iterator[dict[str, Any]]:
    """Yield what each kernel needs at the sizes of each network, in bfloat16."""
    triton.runtime.driver.set_active(Target())
    for name in NETWORKS:
        found = []
        flash.run = lambda kernel, grid, *inputs, found=found, **options: found.append(
            describe(kernel.warmup(*inputs, grid=grid, **options))
            | {"kernel": kernel.__name__, "tiles": [options["QUERIES"], options["STATES"]]}
        )
        attend_and_differentiate(name)
        yield from ({"network": name} | each for each in found)


def attend_and_differentiate(name: str) -> None:
    """Start all kernels for a network; the tensors have shapes, and no numbers."""
    case = load_published(name, smoke=False)
    B = case.rows
    L = case.tgt_len
    S = case.mem_len + L
    H = case.config.n_head
    K = case.config.head_width

    def make(*shape: int) -> Tensor:
        like = {"dtype": torch.bfloat16, "device": "meta"}
        return torch.empty(shape, requires_grad=True, **like)

    by_distance = (make(H, K), make(H, K), make(S + 1, H, K), None)
    first_BL = torch.empty(B, L, dtype=torch.int32, device="meta")
    inputs = (make(B, L, H, K), make(B, S, 2, H, K), *by_distance, first_BL, case.config.dropatt)
    flash.Attention.apply(*inputs).sum().backward()


def describe(compiled: Any) -> dict[str, Any]:
    """Return what a compiled kernel needs, and how it multiplies and reads."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        words = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", shown).groups()
    code = compiled.asm["ptx"]
    return {
        "registers of a thread": int(registers),
        "bytes beside registers": int(stack),
        "shared bytes": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
        "products by wgmma": code.count("wgmma.mma_async"),
        "other products": code.count("mma.sync"),
        "reads of 2 bytes": len(re.findall(r"ld\.global\S*\.b16", code)),
    }


if __name__ == "__main__":
    find = interpret if triton.knobs.runtime.interpret else compile_for_target
    for found in find():
        print(json.dumps(found), flush=True)
