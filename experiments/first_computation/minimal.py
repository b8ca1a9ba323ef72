"""Is the first vector function of a process exact on two threads? Needs torch only.

    python experiments/first_computation/minimal.py [PROCESSES]

Each of 100 new processes prints by how much its first sines differ from its second ones: 0, or
1.5e-4 in the half of one thread. Where it is too rare to be seen, see slow_detection.c.
"""

import subprocess
import sys
from collections import Counter

CHILD = """
import torch
torch.set_num_threads(2)
angle = torch.arange(33_000) * 0.013
first, second = angle.sin(), angle.sin()
print(f"{(first - second).abs().max().item():.2g}")
"""


def main() -> None:
    """Start the processes and count what they print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    command = [sys.executable, "-c", CHILD]
    outputs = [subprocess.check_output(command, text=True).strip() for _ in range(count)]
    print(dict(Counter(outputs)))


if __name__ == "__main__":
    main()
