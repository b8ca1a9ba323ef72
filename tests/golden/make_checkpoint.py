"""Make checkpoint-VERSION.ckpt with the present code: python make_checkpoint.py VERSION.

Run it for each release, and when FORMAT in txl_lightning/checkpoints/files.py increases; keep the
earlier files. It prints the values that tests/checkpoints/test_golden.py expects.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

TEXT = b"the five boxing wizards jump quickly, and the lazy dog sees them; so it goes.\n" * 40
DATA = [
    "--data.tgt_len=8", "--data.batch_size=2", "--data.vocab=characters",
    "--data.path=text.txt", "--data.data_dir=data",
]  # fmt: skip
OPTIONS = [
    "--model.net.n_layer=1", "--model.net.n_head=2", "--model.net.d_model=8",
    "--model.net.mem_len=8", "--model.optim.lr=0.01", "--trainer.max_steps=20", *DATA,
    "--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.default_root_dir=.",
    "--trainer.enable_progress_bar=false",
]  # fmt: skip


def main(version: str) -> None:
    """Train a few steps, save the checkpoint beside this file, and validate it."""
    from txl_lightning.__main__ import run

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("text.txt").write_bytes(TEXT)
        run(["fit", *OPTIONS])
        target = Path(__file__).with_name(f"checkpoint-{version}.ckpt")
        shutil.copy("version_0/checkpoints/last.ckpt", target)
        shutil.copy("version_0/checkpoints/last.ckpt.json", f"{target}.json")
        run(["validate", *DATA, "--trainer.accelerator=cpu", f"--ckpt_path={target}"])


if __name__ == "__main__":
    main(sys.argv[1])
