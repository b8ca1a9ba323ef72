"""How many megabytes does one core encode per second, beside Hugging Face's `encode_batch`?

    python -m experiments.preparing.encoding [--megabytes 50]

Python's own source is encoded as one text and as one document per line, with words and with BPE, on
one thread; `encode_batch` of the same tokenizer gets the same texts. One JSON line for each.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from experiments.preparing.measure import write_source
from txl_lightning.data.recipe import encode_slices
from txl_lightning.data.text_files import whole_file
from txl_lightning.data.vocab import SubwordOptions, WordOptions, Words, train_subwords

PIECE = 100_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=50)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        path = write_source(Path(folder) / "source.txt", args.megabytes * 10**6)
        slices, text = whole_file(path), path.read_text(errors="replace")
        lines = [line.text.decode() for line in slices[0].split_lines()]
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
        bpe = train_subwords("bpe", slices, SubwordOptions(train_bytes=2_000_000))
        words = Words.from_documents(slices, WordOptions(max_size=100_000))
        tokenizer = bpe._tokenizer
        for unit, texts in ((None, pieces), ("lines", lines)):
            for name, vocab in (("words", words), ("bpe", bpe)):
                Path(folder, "vocab.json").write_text(vocab.to_json())
                how = (slices, Path(folder, "vocab.json"), unit, 1, lambda _: None)
                report(name, unit, args.megabytes, lambda how=how: sum(
                    len(ids) for ids, _ in encode_slices(*how)
                ))  # fmt: skip
            report("encode_batch", unit, args.megabytes, lambda t=texts: sum(
                len(each.ids) for some in batched_texts(t)
                for each in tokenizer.encode_batch(some, add_special_tokens=False)
            ))  # fmt: skip


def batched_texts(texts: list[str]) -> list[list[str]]:
    size = 8 if len(texts[0]) == PIECE else 1000
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def report(name: str, unit: str | None, megabytes: int, encode: Callable[[], int]) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    n_token = encode()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    values = {"tokens": n_token, "mb_per_s": round(megabytes / seconds, 2)}
    values["mb_per_cpu_s"] = round(megabytes / cpu, 2)
    print(json.dumps({"encoder": name, "documents": unit or "one"} | values), flush=True)


if __name__ == "__main__":
    main()
