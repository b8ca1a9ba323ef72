"""How fast is a token that a ring reads, beside one that reads a part of a buffer?

    python -m experiments.speed.decoding          # and --fast, at tiny sizes

Both read the same tokens in turn, on one thread. Printed is the CPU time of this thread, in
milliseconds a token: the least and the median of rounds. The memory is full, but in the last case.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.speed.cases import BASE, NARROW, TINY
from txl_lightning import Adaptation
from txl_lightning.model import TransformerXL, TransformerXLConfig, pack_weights
from txl_lightning.model.reading import Reader
from txl_lightning.model.ring import Decoder

SMALL = {"n_layer": 4, "d_model": 128, "n_head": 4, "d_head": 32, "d_inner": 512}
CASES = {
    "decode-2100": (BASE, 2100, 1, 2100),
    "decode-512": (BASE, 512, 1, 512),
    "decode-512, 4 rows": (BASE, 512, 4, 512),
    "decode-64, 6 layers": (NARROW, 64, 1, 64),
    "decode-64, 4 layers": (SMALL, 64, 1, 64),
    "decode-2100, begun": (BASE, 2100, 1, 5),
}
"""Sizes, mem_len, rows, and tokens read before."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="tiny sizes")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=4, help="of each way in a round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("case, weights: least and median of plain, of a ring")
    for name, (sizes, mem_len, n_row, n_before) in CASES.items():
        for weights in ("float32", "bf16"):
            config = TransformerXLConfig(**(TINY if args.fast else sizes), mem_len=mem_len)
            net = pack_weights(TransformerXL(config).eval(), weights)
            found = time_in_turn(net, n_row, n_before, args.rounds, args.tokens)
            print(f"{name}, {weights}: " + ", ".join(f"{ms:.2f}" for ms in found), flush=True)


@torch.inference_mode()
def time_in_turn(net: Any, n_row: int, n_before: int, rounds: int, n_token: int) -> list[float]:
    """Return the least and the median milliseconds a token of a Reader, and of a Decoder."""
    tokens_BL = torch.randint(net.config.n_token, (n_row, n_before))
    reads = [start(reader, tokens_BL) for reader in (Reader(net), Decoder(net, Adaptation()))]
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for read, taken in zip(reads, times, strict=True):
            began = time.thread_time()
            for _ in range(n_token):
                read(tokens_BL[:, :1])
            taken.append(1000 * (time.thread_time() - began) / n_token)
    return [choose(taken) for taken in times for choose in (min, statistics.median)]


def start(reader: Reader, tokens_BL: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that reads the next token, after all of these."""
    memory = None
    for part_BL in tokens_BL.split(128, dim=1):
        _, memory = reader.hidden(part_BL, memory)

    def read(tokens_B1: Tensor) -> Tensor:
        nonlocal memory
        h_B1D, memory = reader.hidden(tokens_B1, memory)
        return reader.head(h_B1D)

    # Slots and distance terms are made with the first one.
    read(tokens_BL[:, :1])
    return read


if __name__ == "__main__":
    main()
