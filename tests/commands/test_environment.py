"""environment: a table of Markdown."""

import os
import re

import torch

import txl_lightning


def test_environment_prints_versions_device_kernels_and_paths(txl, monkeypatch):
    monkeypatch.setenv("TXL_DATA", "/big/disk")
    code, output = txl("environment")
    lines = [re.fullmatch(r"\| (.*?) ?\| (.*?) ?\|", line) for line in output.out.splitlines()]
    facts = {line[1]: line[2] for line in lines if line}
    assert code == 0
    assert facts["txl-lightning"].startswith(f"{txl_lightning.__version__}, commit ")
    assert (facts["torch"], facts["data"]) == (torch.__version__, "/big/disk")
    assert facts["threads"].startswith(f"{torch.get_num_threads()}, load")
    assert facts["here"] == os.getcwd()
    if not torch.cuda.is_available():
        assert facts["kernel"].startswith("per_head: the fastest on a CPU")
