"""Write small runs and exports of this version, with the numbers that later versions must give.

    python -m tests.golden.releases.make

The folder beside this file that is named by the version has, for each network of NETWORKS:

- `run`, the folder of a run that was stopped after 4 of 8 steps
- `export`, its weights as `save_folder` writes them
- `session.safetensors`, a session that has read a part of the text
- `numbers.json`, what `measure`, `resume` and `continue_session` returned

tests/checkpoints/test_releases.py reads all versions. After the release of a version its folder is
never written again.
"""

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import txl_lightning
from txl_lightning import Adaptation, Sessions, load, stream_nats
from txl_lightning import __main__ as entry
from txl_lightning.checkpoints import save_folder
from txl_lightning.runs.metrics_table import read_metrics

FOLDER = Path(__file__).parent
NETWORKS = {
    "transformer_xl": ["--model.net.n_head=2", "--model.net.mem_len=12"],
    "lstm": ["--model.net=LSTM"],
}
"""Options of a network, beside those of all."""
# Without dropout, numbers are equal to rounding on all machines.
OPTIONS = (
    "--data.path=text.txt", "--data.data_dir=data", "--data.vocab=characters", "--data.tgt_len=8",
    "--data.batch_size=4", "--model.net.n_layer=2", "--model.net.d_model=8",
    "--model.net.dropout=0", "--model.optim.lr=0.01", "--model.optim.schedule=constant",
    "--trainer.val_check_interval=4", "--trainer.limit_val_batches=4", "--trainer.accelerator=cpu",
    "--trainer.log_every_n_steps=1", "--report.html=false", "--report.sample_len=0",
)  # fmt: skip
RUN = "runs/version_0"
KEPT = ("config.yaml", "vocab.json", "metrics.csv")
KEPT += tuple(f"checkpoints/{name}.ckpt{end}" for name in ("best", "last") for end in ("", ".json"))


def write_text() -> None:
    """Write the text that the runs read, in the current folder."""
    Path("text.txt").write_text("".join(chr(97 + n * n % 23 + n % 3) for n in range(6000)))


def measure(path: Path) -> list[float]:
    """Return the nats of some tokens, by the weights in a run or an exported folder."""
    model, vocab = load(path)
    ids = vocab.encode_text(Path("text.txt").read_text()[:40])
    return stream_nats(model, ids, batch_size=1, tgt_len=8)[0].tolist()


def resume() -> list[dict[str, Any]]:
    """Continue the run for 4 steps; return the nats of these, and of the validation after them."""
    entry.run(["fit", f"--config={RUN}/config.yaml", "--resume=auto", "--trainer.max_steps=8"])
    rows = [row for row in read_metrics(Path(RUN)).rows if row["step"] > 4]
    names = ("step", "train/nats", "val/nats")
    return [{name: row[name] for name in names if name in row} for row in rows]


def save_session(path: Path, out: Path) -> None:
    """Save a session of the network in a folder, which learns, after 300 characters."""
    learning = Adaptation(cache_len=50, rate=0.01)
    session = Sessions(*load(path)).open(learning)
    session.feed(Path("text.txt").read_text()[:300])
    session.save(out)


def continue_session(path: Path, session: Path) -> list[float]:
    """Return the nats of the next 40 characters that a saved session reads."""
    restored = Sessions(*load(path)).restore(session)
    return [token.nats for token in restored.feed(Path("text.txt").read_text()[300:340])]


def write_network(options: list[str], out: Path) -> None:
    """Write the run, the export and the numbers of a network; the current folder is empty."""
    write_text()
    entry.run(
        ["fit", *options, *OPTIONS, "--trainer.default_root_dir=runs", "--trainer.max_steps=4"]
    )
    for file in KEPT:
        (out / "run" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(RUN, file), out / "run" / file)
    (out / "export").mkdir()
    model, vocab = load(RUN)
    save_folder(model, out / "export", vocab)
    session = out / "session.safetensors"
    save_session(out / "run", session)
    numbers = {"nats": measure(out / "run"), "resumed": resume()}
    numbers["session"] = continue_session(out / "run", session)
    (out / "numbers.json").write_text(json.dumps(numbers, indent=1))


def main() -> None:
    """Write the folder of this version."""
    torch.set_num_threads(1)
    for name, options in NETWORKS.items():
        out = FOLDER / txl_lightning.__version__ / name
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            write_network(options, out)


if __name__ == "__main__":
    main()
