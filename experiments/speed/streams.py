"""How fast are texts read that come line by line, of 1, 8 and 64 streams, ours and others'?

    python -m experiments.speed.streams OUT.json [--rounds 5]

Each round gives every stream a line of 30 tokens. The memory of each is full. Contestants have four
layers of 128 and 256 tokens, and take turns. Times are those of the processor, with one thread:
other work disturbs them less. The environment needs transformers 5.

- Sessions: a state for each stream, lines of equal lengths
- Sessions, mixed: lines of 15 to 45 tokens
- Llama, kept keys: the keys of the last 128 tokens are kept, and cut by hand after each line
- Llama, read again: the last 128 tokens are read again with each line, as a pipeline does
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from txl_lightning import Sessions, TransformerXLConfig
from txl_lightning.data.vocab import Bytes
from txl_lightning.machine import describe_environment

LINE_LEN = 30
MEM_LEN = 128
STREAMS = (1, 8, 64)
TEXT = "abcdefghijklmnopqrstuvwxyz " * 20


class OurStreams:
    """Sessions of one network, fed together."""

    def __init__(self, n_stream: int, is_mixed: bool) -> None:
        net = TransformerXLConfig(n_token=256, n_layer=4, d_model=128, mem_len=MEM_LEN).build()
        self.sessions = Sessions(net.eval(), Bytes())
        self.opened = [self.sessions.open() for _ in range(n_stream)]
        lengths = [LINE_LEN] * n_stream
        if is_mixed:
            lengths = [LINE_LEN - 15 + (7 * n) % 31 for n in range(n_stream)]
        self.lines = [TEXT[:length] for length in lengths]
        self.sessions.feed_each(self.opened, [TEXT] * n_stream)

    def read_lines(self) -> int:
        found = self.sessions.feed_each(self.opened, self.lines)
        return sum(len(tokens) for tokens in found)


class Llama:
    """A Llama whose streams are rows of one batch."""

    def __init__(self, n_stream: int, keeps_keys: bool) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 341}
        sizes |= {"num_hidden_layers": 4, "num_attention_heads": 4}
        self.net = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=1 << 20)).eval()
        self.keeps_keys = keeps_keys
        self.n_read = 0
        self.cache = None
        self.context_BM = torch.randint(256, (n_stream, MEM_LEN))
        self.line_BL = torch.randint(256, (n_stream, LINE_LEN))
        if keeps_keys:
            self.read(self.context_BM)

    def read_lines(self) -> int:
        if self.keeps_keys:
            logits_BLV = self.read(self.line_BL)
        else:
            logits_BLV = self.net(torch.cat([self.context_BM, self.line_BL], dim=1)).logits
        logp_BLV = logits_BLV[:, -LINE_LEN:].log_softmax(dim=-1)
        return logp_BLV.gather(2, self.line_BL[..., None]).numel()

    def read(self, tokens_BL: torch.Tensor) -> torch.Tensor:
        """Return logits after kept keys, of which the oldest are then cut."""
        places = torch.arange(self.n_read, self.n_read + tokens_BL.size(1))[None]
        options = {"past_key_values": self.cache, "position_ids": places, "use_cache": True}
        output = self.net(tokens_BL, **options)
        self.cache = output.past_key_values
        self.n_read += tokens_BL.size(1)
        for layer in self.cache.layers:
            layer.keys = layer.keys[:, :, -MEM_LEN:]
            layer.values = layer.values[:, :, -MEM_LEN:]
        return output.logits


CONTESTANTS = {
    "Sessions": lambda n_stream: OurStreams(n_stream, is_mixed=False),
    "Sessions, mixed": lambda n_stream: OurStreams(n_stream, is_mixed=True),
    "Llama, kept keys": lambda n_stream: Llama(n_stream, keeps_keys=True),
    "Llama, read again": lambda n_stream: Llama(n_stream, keeps_keys=False),
}


@torch.inference_mode()
def measure(n_stream: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of a round, and tokens in a second, of each contestant."""
    contestants = {name: make(n_stream) for name, make in CONTESTANTS.items()}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    counts = {}
    for n_round in range(rounds + 1):
        for name, each in contestants.items():
            start = time.process_time()
            counts[name] = each.read_lines()
            # The first round is not timed.
            times[name] += [time.process_time() - start] * (n_round > 0)
    return {
        name: {
            "fastest_ms": 1e3 * min(each),
            "median_ms": 1e3 * median(each),
            "tokens_per_second": counts[name] / min(each),
        }
        for name, each in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    result = {"streams": {n: measure(n, args.rounds) for n in args.streams}}
    result["origin"] = describe_environment(torch.device("cpu"))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
