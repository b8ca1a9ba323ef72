"""Processes that train together, and share no more than machines would."""

import os
import sys
from pathlib import Path

from torch.distributed import TCPStore

from tests.helpers.processes import REPOSITORY, Processes


def run_on_nodes(processes: Processes, n_node: int, file: str, *words: object) -> None:
    """Run a Python file once on each of several nodes, as torchrun's agents would."""
    # The system chooses the port, so that nobody else has it.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    world |= {"WORLD_SIZE": str(n_node), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    world |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = [["env", f"RANK={n}", f"GROUP_RANK={n}"] for n in range(n_node)]
    commands = [[*rank, sys.executable, file, *words] for rank in ranks]
    for done in processes.run_together(commands, cwd=Path(REPOSITORY), env=os.environ | world):
        assert done.returncode == 0, done.stdout + done.stderr
