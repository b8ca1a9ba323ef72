"""How many tokens a second does each implementation evaluate, with the same weights?

    python -m venv peers && peers/bin/pip install -r experiments/speed/requirements.txt
    PYTHONPATH=. peers/bin/python experiments/speed/peers.py [--original PATH] [--only NAME ...]

Each setting's contestants read the next segment of the same text in turn, memories full, many
times; what counts is the fastest. Printed as JSON: milliseconds of a segment, how many times longer
than ours, the largest difference of a token's nats from ours, and for one-token decoding how long
it takes to read what it needs once, at the speed of a large copy in the same run.

PATH is a checkout of kimiyoung/transformer-xl; its masks are made boolean, without which it does
not run. x-transformers has other positions (a bias for each distance), so its weights are its own.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from txl_lightning.model import CachedReader, TransformerXL, TransformerXLConfig  # noqa: E402

BYTES = {"n_token": 256}
BASE = {"n_layer": 12, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048}
WORDS = {"n_layer": 16, "d_model": 410, "n_head": 10, "d_head": 41, "d_inner": 2100}
SETTINGS = {
    "80/2100": (BASE | {"clamp_len": 820}, 80, 2100, 1),
    "decoding at 2100": (BASE, 1, 2100, 1),
    "128/1600, heads of 41": (WORDS | {"clamp_len": 1000}, 128, 1600, 1),
    "128/3800": (BASE | {"n_layer": 6, "clamp_len": 1000}, 128, 3800, 1),
    "64/640, heads of 41": (WORDS | {"clamp_len": 400}, 64, 640, 4),
}
"""Sizes, tokens in a segment, states remembered, rows; clamp_len and same_length as the original
evaluates with, but for one-token decoding."""

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Ours:
    """This package, with its cache or with a memory of hidden states."""

    net: TransformerXL | CachedReader
    memory: Any

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        nats_BL, self.memory = self.net.loss(tokens_BL, targets_BL, self.memory)
        return nats_BL


class HuggingFace:
    """TransfoXL of transformers 4.57.6; labels are not used, because it would shift them."""

    def __init__(self, net: TransformerXL, mem_len: int, rows: int) -> None:
        from transformers import TransfoXLConfig, TransfoXLLMHeadModel

        from txl_lightning.convert.huggingface import config_to_huggingface

        settings = config_to_huggingface(net.config) | {"mem_len": mem_len}
        torch.Tensor.type_as = type_as
        self.model = TransfoXLLMHeadModel(TransfoXLConfig(**settings)).eval()
        self.model.load_state_dict(theirs(net, self.model))
        width = net.config.d_model
        self.memories = [torch.zeros(0, rows, width) for _ in range(net.config.n_layer)]

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        found = self.model(input_ids=tokens_BL, mems=self.memories)
        self.memories = found.mems
        return -found.prediction_scores.gather(2, targets_BL[..., None]).squeeze(2)


def type_as(self: Tensor, other=None, dtype=None, of=torch.Tensor.type_as) -> Tensor:
    """It calls it with a dtype, which no torch allows; what is meant is `to`."""
    return of(self, other) if dtype is None else self.to(dtype)


def theirs(net: TransformerXL, model: torch.nn.Module) -> dict[str, Tensor]:
    """Our weights under Hugging Face's names."""
    from txl_lightning.checkpoints.weights import export_weights
    from txl_lightning.convert.huggingface import map_huggingface_weights

    found = export_weights(net.state_dict(), map_huggingface_weights(net.config))
    return model.state_dict() | found


class Original:
    """The paper's PyTorch code."""

    def __init__(self, path: Path, net: TransformerXL, tgt_len: int, mem_len: int) -> None:
        from txl_lightning.checkpoints.weights import export_weights
        from txl_lightning.convert.original import SAME_NAME, map_original_weights

        config = net.config
        sys.path[:0] = [str(path / "pytorch"), str(path / "pytorch" / "utils")]
        torch.version.cuda = torch.version.cuda or "0.0"
        from mem_transformer import MemTransformerLM

        torch.Tensor.byte = lambda self: self.bool()
        keywords = {name: getattr(config, name) for name in SAME_NAME}
        lengths = {"tgt_len": tgt_len, "mem_len": mem_len, "ext_len": 0}
        lengths |= {"clamp_len": config.clamp_len or -1, "same_length": bool(config.same_length)}
        self.model = MemTransformerLM(**keywords | lengths).eval()
        found = export_weights(net.state_dict(), map_original_weights(config))
        self.model.load_state_dict(self.model.state_dict() | found)
        self.memories: tuple[Tensor, ...] = ()

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        nats_LB, *self.memories = self.model(
            tokens_BL.t().contiguous(), targets_BL.t().contiguous(), *self.memories
        )
        return nats_LB.t()


class XTransformers:
    """x-transformers' recurrence, with the positions that it allows there."""

    def __init__(self, config: TransformerXLConfig, tgt_len: int, mem_len: int) -> None:
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(
            dim=config.d_model,
            depth=config.n_layer,
            heads=config.n_head,
            attn_dim_head=config.head_width,
            ff_mult=config.inner_width / config.d_model,
            rel_pos_bias=True,
        )
        sizes = {"num_tokens": config.n_token, "max_seq_len": tgt_len, "max_mem_len": mem_len}
        self.model = TransformerWrapper(**sizes, attn_layers=layers).eval()
        self.memories = None

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        logits_BLV, self.memories = self.model(tokens_BL, mems=self.memories, return_mems=True)
        return -logits_BLV.log_softmax(-1).gather(2, targets_BL[..., None]).squeeze(2)


def contestants(
    sizes: dict[str, int], tgt_len: int, mem_len: int, rows: int, original: Path | None
) -> dict[str, Step]:
    """Who takes part."""
    torch.manual_seed(0)
    same_length = "mem_len" if "clamp_len" in sizes else None
    lengths = {"mem_len": mem_len, "same_length": same_length}
    config = TransformerXLConfig(**BYTES, **sizes, **lengths, kernel="matmul")
    net = TransformerXL(config).eval()
    found: dict[str, Step] = {
        "ours": Ours(CachedReader(net), CachedReader(net).empty_memory(rows)),
        "ours, hidden states": Ours(net, net.empty_memory(rows)),
        "Hugging Face": HuggingFace(net, mem_len, rows),
        "x-transformers": XTransformers(config, tgt_len, mem_len),
    }
    return found | ({"original": Original(original, net, tgt_len, mem_len)} if original else {})


def measure(
    steps: dict[str, Step], tgt_len: int, mem_len: int, rows: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Milliseconds of each one's segments, and how far its nats are from ours."""
    draw = torch.Generator().manual_seed(0)
    filling = -(-mem_len // FILLING)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    apart = dict.fromkeys(steps, 0.0)
    for index in range(filling + 2 + rounds):
        count = FILLING if index < filling else tgt_len
        text = torch.randint(BYTES["n_token"], (rows, count + 1), generator=draw)
        nats = {}
        for name, step in steps.items():
            began = time.perf_counter()
            nats[name] = step(text[:, :-1], text[:, 1:])
            if index >= filling + 2:
                seconds[name].append(time.perf_counter() - began)
        for name, found in nats.items():
            apart[name] = max(apart[name], (found - nats["ours"]).abs().max().item())
    return {
        name: {
            "ms": round(min(seconds[name]) * 1e3, 2),
            "times ours": round(min(seconds[name]) / min(seconds["ours"]), 2),
            "nats apart": apart[name],
        }
        for name in steps
    }


FILLING = 160
"""Tokens in a segment that only fills memories."""


def bytes_read(net: TransformerXL, mem_len: int) -> int:
    """What decoding a token must read: layers, softmax, keys, values, and the keys of distances."""
    config = net.config
    per_layer = config.n_head * config.head_width * (3 * mem_len + 1)
    layers = [*net.layers.parameters(), *net.head.parameters()]
    return 4 * (sum(parameter.numel() for parameter in layers) + config.n_layer * per_layer)


def copy_bandwidth(repeats: int = 5) -> float:
    """Bytes a second that a large copy reads and writes, at best."""
    source = torch.ones(64 << 20)
    target, seconds = torch.empty_like(source), []
    for _ in range(repeats):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return 2 * source.nbytes / min(seconds)


@torch.inference_mode()
def main() -> None:
    """Measure each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--original", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    torch.set_flush_denormal(True)
    for name in given.only:
        sizes, tgt_len, mem_len, rows = SETTINGS[name]
        steps = contestants(sizes, tgt_len, mem_len, rows, given.original)
        found: dict[str, Any] = measure(steps, tgt_len, mem_len, rows, given.rounds)
        if tgt_len == 1:
            read, speed = bytes_read(steps["ours"].net, mem_len), copy_bandwidth()
            once = {"MB": round(read / 1e6), "GB/s": round(speed / 1e9, 1)}
            found["reading once"] = once | {"ms": round(read / speed * 1e3, 2)}
        print(json.dumps({"setting": name} | found), flush=True)
    about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rounds": given.rounds}
    print(json.dumps(about))


if __name__ == "__main__":
    main()
