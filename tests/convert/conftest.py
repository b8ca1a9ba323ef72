"""Outputs of other codes, as files in tests/golden."""

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning.model import EvalLengths


class Golden:
    """Settings, weights, tokens, nats and memories of another code: tests/golden/NAME.npz."""

    def __init__(self, name):
        with np.load(Path(__file__).parents[1] / "golden" / f"{name}.npz") as archive:
            arrays = {n: archive[n] for n in archive.files if archive[n].dtype.kind != "U"}
            self.args = json.loads(str(archive["config"]))
            self.words = json.loads(str(archive["idx2sym"])) if "idx2sym" in archive else None
        self.arrays = {name: torch.from_numpy(arrays[name]) for name in arrays}
        self.weights = {n[3:]: self.arrays[n] for n in self.arrays if n.startswith("sd.")}
        as_made = [self.args.get("tgt_len") or self.arrays["tgt_len"], self.args.get("ext_len", 0)]
        lengths = torch.tensor([*as_made, self.args["mem_len"]])
        self.tgt_len, self.ext_len, self.mem_len = self.arrays.get("reset_length", lengths).tolist()
        # Only the original and NVIDIA without keep_order give nats in the order of clusters.
        clusters = self.args.get("cutoffs") and self.weights
        self.by_cluster = bool(clusters) and not name.startswith("huggingface")
        flat = self.arrays["data"].long().flatten()
        self.rows = flat[: len(flat) // 3 * 3].view(3, -1)

    def segments(self):
        """Yield tokens, targets and how many are scored, as the original's iterator does."""
        for start in range(0, self.rows.size(1) - 1, self.tgt_len):
            window = self.rows[:, max(start - self.ext_len, 0) : start + self.tgt_len + 1]
            yield window[:, :-1], window[:, 1:], min(self.tgt_len, self.rows.size(1) - 1 - start)

    def check(self, net, dtype=torch.float64, tolerance=1e-5):
        """Require that a network, in a precision, has these nats and this memory."""
        # In float32 two roundings would add up: up to 9e-6 each, of nats of 36.
        net = deepcopy(net).to(dtype)
        memory = net.empty_memory(3, EvalLengths(self.mem_len))
        for index, (tokens, targets, scored) in enumerate(self.segments()):
            nats, memory = net.loss(tokens.to(net.device), targets.to(net.device), memory)
            actual = nats[:, -scored:].cpu()
            expected = self.arrays[f"nll.{index}"].t()
            if f"ordered.{index}" in self.arrays:
                expected = self.arrays[f"ordered.{index}"].t()
            elif self.by_cluster:
                actual = actual.flatten().sort().values
                expected = expected.flatten().sort().values
            torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=tolerance)
        assert f"nll.{index + 1}" not in self.arrays
        for n, h_BMD in enumerate(memory.h_NBMD if self.mem_len else []):
            expected = self.arrays[f"mem.{n}"].transpose(0, 1)
            expected = expected.to(h_BMD.dtype)
            torch.testing.assert_close(h_BMD.cpu(), expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="session")
def open_golden():
    """Open a file of tests/golden."""
    return Golden
